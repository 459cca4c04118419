"""What a synthetic set says about records: three numbers for each, larger = more like a member."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.membership.readout import readout
from attacks.membership.signals import logit_scaled
from privdd.auditing.targets.labelled import Labelled
from privdd.auditing.targets.nearest import flat, nearest

NEAR = (
    5  # of the reference set, whose density is an average; copies stand alone, so the synthetic set counts its nearest
)


def signals_of(
    synthetic: Labelled, records: Labelled, reference: Labelled, scale: Tensor, classes: int
) -> dict[str, Tensor]:
    """name -> (n,) float64.

    "distance": minus the distance to the nearest synthetic record; "density": the logarithm of the distance to the
    reference over that, a nearest-neighbour form of the density ratio of van Breugel et al. (2023, DOMIAS);
    "confidence": logit-scaled, of a ridge classifier trained on the synthetic set, where it has two classes.
    """
    own, made, known = (flat(one.x, scale) for one in (records, synthetic, reference))
    distance = nearest(own, made)[0][:, 0]
    around = nearest(own, known, min(NEAR, len(known)))[0].mean(1)
    found = {"distance": -distance, "density": around.clamp_min(1e-9).log() - distance.clamp_min(1e-9).log()}
    if classes > 1 and len(synthetic.y.unique()) > 1 and int(synthetic.y.max()) < classes:
        outputs = readout(_with_one(made).float(), synthetic.y, _with_one(own).float(), classes)
        found["confidence"] = logit_scaled(outputs.double(), records.y)
    return found


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)

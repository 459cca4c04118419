"""The global threshold (Yeom et al. 2018): one threshold for all records, no shadow models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.membership.attack import MembershipAttack, require_worlds
from attacks.membership.measures import measure_rates_per_record
from attacks.tensors import accepts_numpy
from attacks.types import Evidence, Finding, View, Worlds


@accepts_numpy
def loss_threshold(signal: Tensor) -> Tensor:
    """The signal itself as the score (Yeom et al. 2018).

    Args:
        signal: (n,), larger = member; for a loss, pass minus the loss.

    Returns:
        (n,) float64.

    Raises:
        ValueError: for another shape, NaN or infinity.
    """
    score = torch.as_tensor(signal).double()
    if score.ndim != 1 or not torch.isfinite(score).all():
        raise ValueError(f"signal {tuple(score.shape)}: one finite number per record is needed")
    return score


@dataclass(frozen=True)
class LossThreshold(MembershipAttack):
    """Yeom et al. (2018): the raw signal, one threshold for all records."""

    name: ClassVar[str] = "loss_threshold"
    least_worlds: ClassVar[int] = 1

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = require_worlds(view)
        return torch.stack([loss_threshold(row) for row in worlds.signals[name]])

    def _add_details(self, finding: Finding, evidence: Evidence, worlds: Worlds) -> Finding:
        """Rates with the same false-positive rate for every record: these scores come from one
        replay each."""
        if evidence.scores is None:
            return finding
        masks = worlds.masks[: len(evidence.scores)]
        rates = measure_rates_per_record(evidence.scores, masks, self.confidence)
        if rates is None:
            return finding
        return finding.with_measures(tpr_at_fpr_per_record=rates)

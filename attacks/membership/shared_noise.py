"""Noise that a batch shares identifies its members: two of them imply the same noise, to the last
bit.

If one noise tensor serves a batch of released rows, row_j - f(x_i) is that noise if row j stems
from record i. So the noises that two candidates imply coincide if both are in. One member alone
implies noise of the stated size, a non-member a larger one. ``KnownNeighbour`` is the same
observation by an insider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.membership.attack import MembershipAttack, require_worlds
from attacks.tensors import accepts_numpy
from attacks.types import Surface, View

COINCIDENCE_SIGNAL = "shared_noise"
MIN_SQUARED_GAP = 1e-12  # below what float32 features of unit scale can distinguish
# of the noise's standard deviation: a gap below it is no accident in more than a few coordinates
COINCIDENCE_LIMIT = 1e-3


@accepts_numpy
def noise_coincidence(
    rows: Tensor, labels: Tensor, clean: Tensor, y: Tensor, batch: int, std: float
) -> Tensor:
    """How clearly each candidate's implied noise is that of a batch.

    A gap is the root mean square difference of the noises that two candidates imply by two rows of
    one batch, each row of its candidate's label. If a candidate's smallest gap is below
    COINCIDENCE_LIMIT * std, its score is log(std / gap) > 0. All other candidates rank below, by
    minus the smallest mean square of a noise that they imply, over std^2. A candidate without a row
    of its label has the lowest score of all, or 0 if no row fits any candidate.

    Args:
        rows: released rows (m, d); ``batch`` neighbouring rows share one noise vector.
        labels: of the rows (m,).
        clean: each candidate's row without noise (n, d).
        y: the candidates' labels (n,).
        batch: at least 1.
        std: of the noise, per coordinate, above 0.

    Returns:
        (n,), larger = member.

    Raises:
        ValueError: for unequal widths, and a batch or std out of its range.
    """
    if batch < 1 or not std > 0 or rows.shape[1:] != clean.shape[1:]:
        raise ValueError(
            f"rows {tuple(rows.shape)}, clean {tuple(clean.shape)}, batch={batch}, std={std}: "
            "equal widths, batch >= 1 and std > 0 are needed"
        )
    gap = torch.full((len(clean),), torch.inf, dtype=torch.float64, device=clean.device)
    energy = gap.clone()
    for batch_rows, batch_labels in zip(rows.double().split(batch), labels.split(batch)):
        record, row = (batch_labels[None, :] == y[:, None]).nonzero(as_tuple=True)
        noise = batch_rows[row] - clean.double()[record]
        gap.scatter_reduce_(0, record, _closest_noise(noise, record, row) / rows.shape[1], "amin")
        energy.scatter_reduce_(0, record, noise.square().mean(1), "amin")
    gap = gap.clamp_min(MIN_SQUARED_GAP).sqrt() / std
    energy = energy / std**2
    scores = torch.where(gap < COINCIDENCE_LIMIT, -gap.log(), -energy)
    has_row = energy.isfinite()
    if not has_row.any():
        return torch.zeros_like(scores)
    return scores.masked_fill(~has_row, float(scores[has_row].min()))


def _closest_noise(noise: Tensor, record: Tensor, row: Tensor) -> Tensor:
    """(p,) squared distance of each implied noise (p, d) to the nearest one of another record and
    another row."""
    nearest = torch.full((len(noise),), torch.inf, dtype=noise.dtype, device=noise.device)
    if not len(noise):
        return nearest
    for block in torch.arange(len(noise)).split(512):
        distance = torch.cdist(noise[block], noise, compute_mode="donot_use_mm_for_euclid_dist")
        shares_origin = (record[block, None] == record[None]) | (row[block, None] == row[None])
        nearest[block] = distance.square().masked_fill(shares_origin, torch.inf).amin(1)
    return nearest


@dataclass(frozen=True)
class SharedNoise(MembershipAttack):
    """The coincidence of implied noises as the score: one threshold for all records, no shadow
    models."""

    name: ClassVar[str] = "shared_noise"
    surfaces: ClassVar[frozenset[Surface]] = frozenset({Surface.FEATURES, Surface.SHARED_FEATURES})
    least_worlds: ClassVar[int] = 1

    def nothing_to_read(self, view: View) -> str:
        if COINCIDENCE_SIGNAL not in require_worlds(view).signals:
            return "every released row has its own noise: none is shared"
        return super().nothing_to_read(view)

    def score(self, view: View, name: str, seed: int) -> Tensor:
        return require_worlds(view).signals[COINCIDENCE_SIGNAL].double()

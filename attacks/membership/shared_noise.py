"""Noise that a batch shares gives its members away: two of them imply the same noise, to the last
bit.

Where one noise tensor serves a batch of released rows, row_j - f(x_i) is that noise if row j stems
from record i. So the noises that two candidates imply coincide if both are in. One member alone
implies noise of the stated size, an outsider a larger one. ``KnownNeighbour`` is the same
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
MIN_SQUARED_GAP = (
    1e-12  # of a squared gap: below what float32 features of unit scale can tell apart
)
# of the noise's standard deviation: a gap below it is no accident in more than a few coordinates
COINCIDENCE_LIMIT = 1e-3


@accepts_numpy
def noise_coincidence(
    rows: Tensor, labels: Tensor, clean: Tensor, y: Tensor, batch: int, std: float
) -> Tensor:
    """(n,) how clearly each candidate's implied noise is that of a batch; larger = more like a
    member.

    rows (m, d) and labels (m,): released, ``batch`` neighbouring rows with one noise vector each,
    of ``std`` > 0 per coordinate; clean (n, d) and y (n,): each candidate's row without noise, and
    its label. A gap is the root mean square difference of the noises that two candidates imply by
    two rows of one batch, each row of its candidate's label. Where the smallest gap is below
    COINCIDENCE_LIMIT * std, the score is log(std / gap) > 0. Every other candidate is ranked below,
    by minus the smallest mean square of a noise that it implies over std^2. A candidate without a
    row of its label gets the lowest score of all, 0 where no row fits any. Raises ValueError for
    batch < 1, std <= 0, unequal widths."""
    if batch < 1 or not std > 0 or rows.shape[1:] != clean.shape[1:]:
        raise ValueError(
            f"rows {tuple(rows.shape)}, clean {tuple(clean.shape)}, batch={batch}, std={std}: "
            "equal widths, batch >= 1 and std > 0 are needed"
        )
    gap, energy = (
        torch.full((len(clean),), torch.inf, dtype=torch.float64, device=clean.device)
        for _ in range(2)
    )
    for part, mine in zip(rows.double().split(batch), labels.split(batch)):
        record, row = (mine[None, :] == y[:, None]).nonzero(as_tuple=True)
        noise = part[row] - clean.double()[record]
        gap.scatter_reduce_(0, record, _closest_noise(noise, record, row) / rows.shape[1], "amin")
        energy.scatter_reduce_(0, record, noise.square().mean(1), "amin")
    gap = gap.clamp_min(MIN_SQUARED_GAP).sqrt() / std
    energy = energy / std**2
    scores = torch.where(gap < COINCIDENCE_LIMIT, -gap.log(), -energy)
    found = energy.isfinite()
    return scores.masked_fill(~found, float(scores[found].min()) if found.any() else 0.0)


def _closest_noise(noise: Tensor, record: Tensor, row: Tensor) -> Tensor:
    """(p,) squared distance of each implied noise (p, d) to the nearest one of another record and
    another row."""
    out = torch.full((len(noise),), torch.inf, dtype=noise.dtype, device=noise.device)
    for some in torch.arange(len(noise)).split(512):
        gaps = torch.cdist(noise[some], noise, compute_mode="donot_use_mm_for_euclid_dist").square()
        same = (record[some, None] == record[None]) | (row[some, None] == row[None])
        out[some] = gaps.masked_fill(same, torch.inf).amin(1) if len(noise) else out[some]
    return out


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

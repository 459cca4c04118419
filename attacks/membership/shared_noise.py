"""Noise that a batch shares gives its members away: two of them imply the same noise, to the last bit.

Where one noise tensor serves a batch of released rows, row_j - f(x_i) is that noise if row j stems from record i.
So the noises that two candidates imply coincide if both are in, and differ by whole features otherwise. No shadow
model and no known record is needed. ``KnownNeighbour`` is the same observation by an insider.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.membership.attack import MembershipAttack, _worlds
from attacks.types import Surface, View

SIGNAL = "shared_noise"
FLOOR = 1e-12  # of a squared gap: below what float32 features of unit scale can tell apart


def noise_coincidence(rows: Tensor, labels: Tensor, clean: Tensor, y: Tensor, batch: int) -> Tensor:
    """(n,) minus the logarithm of each candidate's smallest gap to the noise that another candidate implies.

    rows (m, d) and labels (m,): released, ``batch`` neighbouring rows with one noise vector each; clean (n, d) and
    y (n,): each candidate's row without noise, and its label. A gap compares two candidates and two rows of one
    batch, each row with a candidate of its own label; its square is divided by d. A candidate that can be compared
    in no batch gets the lowest score of all, 0 where none can. Raises ValueError for batch < 1 or unequal widths.
    """
    if batch < 1 or rows.shape[1:] != clean.shape[1:]:
        raise ValueError(f"rows {tuple(rows.shape)}, clean {tuple(clean.shape)}, batch={batch}: equal widths, batch >= 1")
    best = torch.full((len(clean),), torch.inf, dtype=torch.float64)
    for part, mine in zip(rows.double().split(batch), labels.split(batch)):
        record, row = (mine[None, :] == y[:, None]).nonzero(as_tuple=True)
        best.scatter_reduce_(0, record, _closest(part[row] - clean.double()[record], record, row), "amin")
    found = best.isfinite()
    scores = -(best / rows.shape[1]).clamp_min(FLOOR).log() / 2
    return scores.masked_fill(~found, float(scores[found].min()) if found.any() else 0.0)


def _closest(noise: Tensor, record: Tensor, row: Tensor, at_once: int = 512) -> Tensor:
    """(p,) squared distance of each implied noise (p, d) to the nearest one of another record and another row."""
    out = torch.full((len(noise),), torch.inf, dtype=noise.dtype)
    for some in torch.arange(len(noise)).split(at_once):
        gaps = torch.cdist(noise[some], noise, compute_mode="donot_use_mm_for_euclid_dist").square()
        same = (record[some, None] == record[None]) | (row[some, None] == row[None])
        out[some] = gaps.masked_fill(same, torch.inf).amin(1) if len(noise) else out[some]
    return out


@dataclass(frozen=True)
class SharedNoise(MembershipAttack):
    """The coincidence of implied noises as the score: one threshold for all records, no shadow models."""

    name: ClassVar[str] = "shared_noise"
    surfaces: ClassVar[frozenset[Surface]] = frozenset({Surface.FEATURES, Surface.SHARED_FEATURES})
    least_worlds: ClassVar[int] = 1

    def nothing_to_read(self, view: View) -> str:
        return "" if SIGNAL in _worlds(view).signals else "every released row has its own noise: none is shared"

    def score(self, view: View, name: str, seed: int) -> Tensor:
        return _worlds(view).signals[SIGNAL].double()

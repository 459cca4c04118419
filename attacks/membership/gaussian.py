"""The likelihood ratio of several signals at once: a Gaussian for members, one for non-members, fitted on shadow models.

Carlini et al. (2022) fit the two sides of one signal. Here a record has q signals and they are correlated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attacks.arrays import arrays

Covariance = Literal["shared", "per_side"]
LEAST_OWN = 0.25  # share of a record's own gap that is kept whatever the spread says: see _shrunk
PRIOR = 4  # worlds that the pooled variance counts for in a record's own
TINY = 1e-9  # a signal whose spread is this small a part of its size says nothing
FLOOR = 1e-12  # of a variance, in units where the pooled one is about 1


@dataclass(frozen=True)
class Side:
    """One side: centre and standard deviation per record (n, q), the inverse correlations of the signals (q, q)."""

    centre: Tensor
    std: Tensor
    precision: Tensor
    log_det: Tensor

    def log_density(self, target: Tensor) -> Tensor:
        """Up to the constant that both sides share, (n,)."""
        off = (target - self.centre) / self.std
        return -torch.einsum("nq,qr,nr->n", off, self.precision, off) / 2 - self.std.log().sum(-1) - self.log_det


@arrays
def gaussian_ratio(signals: Tensor, masks: Tensor, target: Tensor, *, covariance: Covariance = "shared") -> Tensor:
    """Log-likelihood ratio of membership per record (n,), float64, larger = member.

    signals (K, n, q) of the shadow models, masks (K, n) bool, target (n, q). What few shadow models say about one record
    is mostly noise, so it is moved towards what all records say: the gap between its two centres by as much as the
    spread of all gaps asks for (empirical Bayes, Morris 1983), its variances as if PRIOR more worlds had the pooled one.
    Correlations are pooled over records and shrunk by q / (q + K). "shared": both sides have the same covariance (linear
    discriminant); "per_side": each its own. A signal that never varies
    is left out; with no other the ratio is 0. Raises ValueError for bad shapes, NaN, or a side without any world.
    """
    x, mask, t = _checked(signals, masks, target)
    if covariance not in ("shared", "per_side"):
        raise ValueError(f"covariance={covariance!r}: shared or per_side")
    size = x.abs().mean((0, 1)).clamp_min(1e-300)
    spread = (x - x.mean(0)).square().mean((0, 1)).sqrt()
    kept = spread > TINY * size
    if not kept.any():
        return x.new_zeros(x.shape[1])
    member, other = fit(x[..., kept] / spread[kept], mask, covariance == "per_side")
    target = t[..., kept] / spread[kept]
    return member.log_density(target) - other.log_density(target)


@arrays
def fit(x: Tensor, mask: Tensor, two: bool) -> tuple[Side, Side]:
    """Members' side and non-members'. x (K, n, q) float64 of like size, mask (K, n); two: a covariance for each side."""
    inside, outside = _mean(x, mask), _mean(x, ~mask)
    residual = x - torch.where(mask.unsqueeze(-1), inside, outside)
    both = torch.ones_like(mask)
    shapes = [_shape(residual, side) for side in ((mask, ~mask) if two else (both, both))]
    std = _shape(residual, both)[0]
    counts = torch.stack([mask.sum(0), (~mask).sum(0)]).double()
    gap = _shrunk((inside - outside) / std, counts) * std
    signs = torch.where(mask, 0.5, -0.5).unsqueeze(-1).to(x)
    centre = (x - signs * gap).mean(0)
    return tuple(Side(centre + sign * gap, *shape) for sign, shape in zip((0.5, -0.5), shapes))  # type: ignore[return-value]


def _shape(residual: Tensor, side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Standard deviations (n, q), inverse correlations (q, q) and half their log-determinant, of one side's worlds."""
    kept = residual * side.unsqueeze(-1)
    squares, count = kept.square().sum(0), side.sum(0).double().unsqueeze(-1)
    freedom = (count - 1).clamp_min(0)
    pooled = (squares.sum(0) / freedom.sum(0).clamp_min(1)).clamp_min(FLOOR)
    std = ((squares + PRIOR * pooled) / (freedom + PRIOR)).sqrt()
    z = (kept / std)[side]
    second = z.T @ z / len(z)
    scale = second.diagonal().clamp_min(FLOOR).sqrt()
    share = second.shape[0] / (second.shape[0] + len(residual))  # K and not K n: one world's records share its draw
    mixed = (1 - share) * second / scale / scale.unsqueeze(-1)
    correlation = mixed - torch.diag(mixed.diagonal()) + torch.eye(len(mixed), dtype=mixed.dtype)
    return std, torch.linalg.inv(correlation), torch.logdet(correlation) / 2


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    """(n, q) mean over the worlds of one side; zero where there is none."""
    kept = mask.unsqueeze(-1).to(x)
    return (x * kept).sum(0) / kept.sum(0).clamp_min(1)


def _shrunk(gap: Tensor, counts: Tensor) -> Tensor:
    """Each record's gap (n, q), in standard deviations, moved to the mean gap as far as its noise asks for.

    counts (2, n): its IN and OUT worlds; a record that lacks one takes the mean gap. Raises ValueError where all do.
    Something of a record's own gap always stays: were all gaps one number, its sign alone would decide all scores of a
    signal that says nothing, and AUC would stray from 0.5 by far more than its interval.
    """
    known = (counts > 0).all(0)
    if not known.any():
        raise ValueError("no record has both a world that holds it and one that does not")
    noise = (1 / counts).sum(0).unsqueeze(-1)
    common = gap[known].mean(0)
    off = gap - common
    real = (off[known].square().mean(0) - noise[known].mean(0)).clamp_min(0)  # variance of the true gaps
    return common + torch.where(known.unsqueeze(-1), (real / (real + noise)).clamp_min(LEAST_OWN), 0.0) * off


def _checked(signals: Tensor, masks: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, t, mask = torch.as_tensor(signals).double(), torch.as_tensor(target).double(), torch.as_tensor(masks)
    if x.ndim != 3 or mask.dtype != torch.bool or mask.shape != x.shape[:2] or t.shape != x.shape[1:]:
        raise ValueError(
            f"signals {tuple(x.shape)}, masks {tuple(mask.shape)} {mask.dtype}, target {tuple(t.shape)}: "
            "(K, n, q), (K, n) bool, (n, q)"
        )
    if not (torch.isfinite(x).all() and torch.isfinite(t).all()):
        raise ValueError("signals or target hold NaN or infinity")
    if mask.all() or not mask.any():
        raise ValueError("the shadow models have members only or non-members only")
    return x, mask, t

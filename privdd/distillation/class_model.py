"""How the records of each class look: a normal distribution by class, from noised sums alone.

Means by class, one covariance within all classes: the directions that stand out of the noise, and beside them
independent numbers of one variance a band. The noise of the sums is known to everyone, so what of an estimate is
signal can be told (empirical Bayes, James and Stein 1961; eigenvalues as in spiked models, Johnstone 2001).
Nothing here reads a record: it is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

FEWEST = 20  # a mean is never taken over fewer records than this


@dataclass(frozen=True)
class ClassModel:
    """means: (C, p); spread: directions times standard deviations (r, q) of the numbers ``at`` (q,) of the p."""

    means: Tensor
    spread: Tensor
    at: Tensor

    def drawn(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """One record of each label (m,) -> (m, p)."""
        found = self.means[labels].clone()
        found[:, self.at] += torch.randn(len(labels), len(self.spread), generator=generator).to(found) @ self.spread
        return found


def class_model(sums: Mapping[str, Tensor], bands: Tensor, at: Tensor) -> ClassModel:
    """From float64 sums over the records of all clients, each with noise of public variance in every number:

    "sum" (C, p) and "count" (C,) of a class, "variance" (1,) of both sums' numbers; "moments" (q, q), symmetric, of all
    records' numbers ``at``, and "moments_variance" (1,), of its diagonal; half of that off the diagonal. bands: (p,)
    groups of numbers that are about as large, in which signal is told from noise.
    """
    count = sums["count"].clamp_min(FEWEST)
    noise = sums["variance"] / count.square()
    centre = sums["sum"].sum(0, keepdim=True) / count.sum()
    apart = sums["sum"] / count[:, None] - centre
    means = _kept(centre, sums["variance"] * len(count) / count.sum() ** 2, bands) + _kept(apart, noise.mean(), bands)
    known = means[:, at]
    within = sums["moments"] / count.sum() - known.T @ (known * (count / count.sum())[:, None])
    values, vectors = torch.linalg.eigh(within)
    edge = (2 * len(at) * sums["moments_variance"]).sqrt() / count.sum()  # noise's largest eigenvalue, about
    real = values > edge * (1 + len(at) ** (-2 / 3))  # ... which varies by a share of that order (Tracy and Widom 1994)
    clean = values[real] - edge**2 / (4 * values[real])  # noise lifts an eigenvalue v to v + (edge / 2)^2 / v
    found = (vectors[:, real] * clean.clamp_min(0).sqrt()).T
    left = _by_band((within - found.T @ found).diag(), bands[at])  # what no direction that stands out explains
    return ClassModel(means.float(), torch.cat([found, left.clamp_min(0).sqrt().diag()]).float(), at)


def _kept(rows: Tensor, noise: Tensor, bands: Tensor) -> Tensor:
    """Rows (m, p) times the share of each band's mean square that is not noise."""
    power = _by_band(rows.square().mean(0), bands)
    return rows * (1 - noise / power.clamp_min(1e-30)).clamp(0, 1)


def _by_band(values: Tensor, bands: Tensor) -> Tensor:
    """Each of the values (p,) replaced by the mean of its band, in which noise of mean 0 is averaged out."""
    total = torch.zeros(int(bands.max()) + 1, dtype=values.dtype).index_add_(0, bands, values)
    return (total / torch.bincount(bands).clamp_min(1))[bands]

"""A record that moves the release by a chance amount, as one that is sampled does: what its two moments cost at least.

Data without the record are all zeros, and what is released of them is noise alone; if that is normal, the release with
the record is the same noise plus a chance shift X >= 0. Mean and variance of both sides give E[X] and E[X^2]. Of all laws
with these moments, the one on {0, E[X^2] / E[X]} puts the least beyond any threshold that lies one deviation of the noise
above it (Karlin and Studden 1966, lower principal representation: the third derivative of the normal's tail is positive
there), so its epsilon is a lower bound. Moments are told from a few thousand releases, shares in the tail from millions.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from scipy import stats
from scipy.special import log_ndtr, ndtr

from privdd.checking.learned import totals
from privdd.checking.sampled import Block
from privdd.checking.shift_law import NOT_REJECTED, normal
from privdd.checking.tail_law import over_normal_noise

LEAST = 4000  # transcripts a side
GRID = np.linspace(0.0, 8.0, 400)  # deviations beyond the shift
STEPS = np.linspace(-1.0, 1.0, 9)


def sampled_epsilon(
    trained: tuple[Block, Block],
    fresh: tuple[Block, Block],
    axis: np.ndarray | None,
    *,
    delta: float,
    confidence: float,
) -> float:
    """Lower bound on epsilon; 0 where noise alone is not normal, or the other side is no such mixture."""
    found = over_normal_noise(trained, fresh, axis, LEAST)
    if found is None:
        return 0.0
    ways, a, b = found
    before = totals(trained[0]), totals(trained[1])
    w = max(ways, key=lambda w: abs(_gap(*before, w)))
    w = w * (1.0 if _gap(*before, w) > 0 else -1.0)
    y, z = a @ w, b @ w
    return from_moments(y, z, delta, 1 - confidence) if normal(z) and _fits(y, z) else 0.0


def _gap(a: np.ndarray, b: np.ndarray, w: np.ndarray) -> float:
    """Shift over noise along ``w``."""
    noise = float((b @ w).std())
    return float((a @ w).mean() - (b @ w).mean()) / noise if noise > 0 else 0.0


def _fits(y: np.ndarray, z: np.ndarray) -> bool:
    """Whether y is not rejected as a mixture of z's normal law and the same law shifted."""
    m, q = _two_points(float(y.mean() - z.mean()), float(y.var(ddof=1) - z.var(ddof=1)))
    centre, spread = float(z.mean()), float(z.std(ddof=1))
    if not (m > 0 and spread > 0):
        return False
    law = lambda t: (1 - q) * ndtr((t - centre) / spread) + q * ndtr((t - centre - m) / spread)  # noqa: E731
    return bool(stats.kstest(y, law).pvalue > NOT_REJECTED)


def _two_points(mean: float, variance: float) -> tuple[float, float]:
    """The place m and the share q of X in {0, m} with these moments; at most the whole share."""
    if mean <= 0:
        return 0.0, 0.0
    m = mean + max(variance, 0.0) / mean
    return m, mean / m


def from_moments(y: np.ndarray, z: np.ndarray, delta: float, error: float) -> float:
    """The smallest epsilon over a box of moments: each of three limits takes a third of the error (normal limits)."""
    tail = float(stats.norm.isf(error / 6))
    (my, vy, ey, fy), (mz, vz, ez, fz) = _moments(y), _moments(z)
    widest = math.sqrt(vz + tail * fz)
    means = (my - mz) + tail * math.hypot(ey, ez) * STEPS
    variances = (vy - vz) + tail * math.hypot(fy, fz) * STEPS
    if means[0] <= 0:
        return 0.0
    at = max(delta, 1e-12)
    return min(two_point_epsilon(*_two_points(m, v), widest, at) for m, v in product(means, variances))


def _moments(x: np.ndarray) -> tuple[float, float, float, float]:
    """Mean and variance, and the standard error of each."""
    mean, variance = float(x.mean()), float(x.var(ddof=1))
    fourth = float(((x - mean) ** 4).mean())
    return mean, variance, math.sqrt(variance / len(x)), math.sqrt(max(fourth - variance**2, 0.0) / len(x))


def two_point_epsilon(m: float, q: float, noise: float, delta: float) -> float:
    """Epsilon at ``delta`` > 0 of normal noise shifted by m with a chance of q, over thresholds above m + noise."""
    t = m / noise + 1.0 + GRID
    beyond = q * ndtr(m / noise - t) + (1 - q) * ndtr(-t) - delta
    kept = beyond > 0
    return max(0.0, float((np.log(beyond[kept]) - log_ndtr(-t[kept])).max(initial=0.0)))

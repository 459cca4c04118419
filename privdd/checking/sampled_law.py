"""A record that moves the release by a chance amount, as one that is sampled does: what its three moments cost at least.

Data without the record are all zeros, and what is released of them is noise alone; if that is normal, the release with
the record is the same noise plus a chance shift X. Both sides give mean, variance and third moment of X. Of all laws with
these moments, whatever their signs, the one on the two points of Gauss's quadrature puts the least beyond any threshold
that lies root 3 deviations of the noise above them (Karlin and Studden 1966: the fourth derivative of the normal's tail is
positive there), so its epsilon is a lower bound for every X that stays that far below the threshold. Moments are told from
thousands of releases, shares in the tail from millions.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from scipy.special import log_ndtr, ndtr

from privdd.checking.learned import totals
from privdd.checking.sampled import Block
from privdd.checking.shift_law import NOT_REJECTED, normal
from privdd.checking.tail_law import over_normal_noise

LEAST = 4000  # transcripts a side
GRID = np.linspace(0.0, 8.0, 400)  # deviations beyond the least threshold
ABOVE = math.sqrt(3.0)  # deviations from the further point to that
DIRECTIONS = np.random.default_rng(0).standard_normal((400, 4))
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)  # points of a sphere


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
    """Whether y is not rejected as a mixture of z's normal law, shifted to two places."""
    low, high, q = two_points(*(one - other for one, other in zip(_moments(y)[0], _moments(z)[0])))
    centre, spread = float(z.mean()), float(z.std(ddof=1))
    if not (high > 0 and spread > 0):
        return False
    law = lambda t: (1 - q) * ndtr((t - centre - low) / spread) + q * ndtr((t - centre - high) / spread)  # noqa: E731
    return bool(stats.kstest(y, law).pvalue > NOT_REJECTED)


def two_points(mean: float, variance: float, third: float) -> tuple[float, float, float]:
    """The two places, and the share of the higher one, of the law with this mean, variance and third central moment."""
    if variance <= 0:
        return mean, mean, 1.0
    spread = math.sqrt(variance)
    half = third / variance / spread / 2
    up = half + math.sqrt(1 + half * half)
    return mean - spread / up, mean + spread * up, 1 / (1 + up * up)


def from_moments(y: np.ndarray, z: np.ndarray, delta: float, error: float) -> float:
    """The smallest epsilon on the ellipsoid that normal limits give the three moments and the noise's deviation: half of the
    error is for the side on which epsilon is smaller."""
    (seen, of_seen), (noise, of_noise) = _moments(y), _moments(z)
    deviation = math.sqrt(noise[1])
    slopes = np.vstack([-np.eye(3), [0.0, 0.5 / deviation, 0.0]])  # of (moments of X, deviation) by z's moments
    spread = slopes @ of_noise @ slopes.T
    spread[:3, :3] += of_seen
    centre = np.append(seen - noise, deviation)
    values, vectors = np.linalg.eigh(spread)
    reach = float(stats.norm.isf(error / 2)) * (vectors * np.sqrt(np.maximum(values, 0.0)))
    at, epsilons = max(delta, 1e-12), []
    for mean, variance, third, wide in centre + DIRECTIONS @ reach.T:
        if mean <= 0:
            return 0.0
        epsilons.append(two_point_epsilon(*two_points(mean, variance, third), wide, at))
    return min(epsilons)


def _moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean, variance and third central moment (3,), and the covariance of these estimates (3, 3)."""
    mean = float(x.mean())
    c = x - mean
    two, three = float((c**2).mean()), float((c**3).mean())
    return np.array([mean, two, three]), np.cov(np.stack([c, c**2 - two, c**3 - three - 3 * two * c])) / len(x)


def two_point_epsilon(low: float, high: float, q: float, noise: float, delta: float) -> float:
    """Epsilon at ``delta`` > 0 of normal noise, shifted to ``high`` with a chance of q and to ``low`` otherwise, over
    thresholds far enough above both."""
    t = high / noise + ABOVE + GRID
    beyond = q * ndtr(high / noise - t) + (1 - q) * ndtr(low / noise - t) - delta
    kept = beyond > 0
    return max(0.0, float((np.log(beyond[kept]) - log_ndtr(-t[kept])).max(initial=0.0)))

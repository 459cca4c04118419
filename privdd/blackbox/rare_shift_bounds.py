"""Bounds on epsilon of a record that shows in some releases only, such as a sampled one, over
normal noise."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from scipy.special import log_ndtr, ndtr

from attacks.statistics import lower_limit
from privdd.blackbox.budgets import BoundLevel
from privdd.blackbox.claims import TINY
from privdd.blackbox.law_recognition import NOT_REJECTED, is_normal, law_of_calls
from privdd.blackbox.shift_bounds import directions_and_totals
from privdd.blackbox.transcripts import PairSample, transcript_totals

LEAST_TAIL_VALUES = 1000  # transcripts a side
FURTHEST = 5.0  # standard deviations: beyond them the law is taken on trust alone
TAIL_GRID = np.linspace(-1.0, FURTHEST, 49)
PILOT_ERROR = 0.1  # error probability of the bounds that thresholds are compared by
LEAST_SAMPLED_VALUES = 4000  # transcripts a side
SAMPLED_GRID = np.linspace(0.0, 8.0, 400)  # deviations beyond the least threshold
ABOVE = math.sqrt(3.0)  # deviations from the further point to that
DIRECTIONS = np.random.default_rng(0).standard_normal((400, 4))
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)  # points of a sphere


def tail_epsilon(pair: PairSample, level: BoundLevel) -> float:
    """Lower bound on epsilon from how often the record shows beyond a threshold t.

    epsilon >= ln((P(Y >= t) - delta) / P(Z >= t)) for projections Y with the record and Z without
    it. How often the record shows is counted; P(Z >= t) = 1 - Phi((t - m) / s) follows from the
    noise's own law, with mean and deviation at the worse end of their confidence intervals, as so
    rare an event cannot be counted. Direction and threshold were learned before.

    Args:
        pair: transcripts of neighbours.
        level: delta and confidence.

    Returns:
        0 if the side without the record is not normal.
    """
    projection = _over_normal_noise(pair, LEAST_TAIL_VALUES)
    if projection is None:
        return 0.0
    directions, present, absent = projection
    trained_present, trained_absent = map(transcript_totals, pair.trained)
    plans = []
    for direction in directions:
        for signed in (1.0 * direction, -1.0 * direction):
            promise, threshold = _plan_threshold(
                trained_present @ signed, trained_absent @ signed, level.delta
            )
            plans.append((promise, threshold, signed))
    _, threshold, direction = max(plans, key=lambda plan: plan[0])
    y = present @ direction
    z = absent @ direction
    if not is_normal(z):
        return 0.0
    return _bound_tail(y, z, threshold, level.delta, level.error)


def _over_normal_noise(
    pair: PairSample, least: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray] | None:
    """``directions_and_totals`` if the side without the record is normal noise alone."""
    projection = directions_and_totals(pair, least)
    if projection is None or law_of_calls(pair.fresh[1]) != "gaussian":
        return None
    return projection


def _plan_threshold(y: np.ndarray, z: np.ndarray, delta: float) -> tuple[float, float]:
    """(what the most promising threshold promises, the threshold in units of the release)."""
    thresholds = float(z.mean()) + float(z.std(ddof=1)) * TAIL_GRID
    return max(
        (_bound_tail(y, z, threshold, delta, PILOT_ERROR), threshold) for threshold in thresholds
    )


def _bound_tail(
    y: np.ndarray, z: np.ndarray, threshold: float, delta: float, error: float
) -> float:
    """ln((p_low - delta) / (1 - Phi((t - m_high) / s))).

    p_low: Clopper and Pearson's lower limit of P(Y >= t); m_high: Student's upper limit of the mean
    of Z; s: the chi-squared limit of its deviation that makes the tail larger, the upper one beyond
    m_high and the lower one before it. A quarter of the error for each of the four.

    Args:
        y: (n,) projections with the record.
        z: (m,) projections without it, normal.
        threshold: t, in units of the release.
        delta: in [0, 1).
        error: probability, of all limits together.
    """
    count = len(y)
    freedom = len(z) - 1
    beyond = int((y >= threshold).sum())
    share = lower_limit(beyond, count, error / 4)
    spread = float(z.std(ddof=1))
    student = stats.t.isf(error / 4, freedom)
    highest = float(z.mean()) + student * spread / math.sqrt(len(z))
    widest = spread * math.sqrt(freedom / stats.chi2.ppf(error / 4, freedom))
    narrowest = spread * math.sqrt(freedom / stats.chi2.isf(error / 4, freedom))
    width = widest if threshold > highest else narrowest
    log_chance = float(stats.norm.logsf((threshold - highest) / width))
    if share <= delta:
        return 0.0
    return max(0.0, math.log(share - delta) - log_chance)


def sampled_epsilon(pair: PairSample, level: BoundLevel) -> float:
    """Lower bound on epsilon of normal noise plus a chance shift X, from three moments of X.

    E X, Var X and E (X - E X)^3 are the differences of both sides' moments. Of all laws with these,
    the one on the two points of Gauss's quadrature puts the least beyond any threshold that lies
    root 3 deviations of the noise above them (Karlin and Studden 1966: the fourth derivative of the
    normal's tail is positive there), so its epsilon is a lower bound for every X that stays that
    far below the threshold. By moments, as a small frequent shift is seen in no tail.

    Args:
        pair: transcripts of neighbours.
        level: delta and confidence.

    Returns:
        0 if noise alone is not normal, or the other side is no such mixture.
    """
    projection = _over_normal_noise(pair, LEAST_SAMPLED_VALUES)
    if projection is None:
        return 0.0
    directions, present, absent = projection
    trained_present, trained_absent = map(transcript_totals, pair.trained)
    gaps = []
    for direction in directions:
        without_record = trained_absent @ direction
        gap = float((trained_present @ direction).mean() - without_record.mean())
        gaps.append(gap / max(float(without_record.std()), 1e-300))
    index = int(np.argmax(np.abs(gaps)))
    sign = 1.0 if gaps[index] > 0 else -1.0
    direction = directions[index] * sign
    y = present @ direction
    z = absent @ direction
    if not is_normal(z) or not _fits_mixture(y, z):
        return 0.0
    return epsilon_from_moments(y, z, level.delta, level.error)


def _fits_mixture(y: np.ndarray, z: np.ndarray) -> bool:
    """Whether y is not rejected as a mixture of z's normal law, shifted to two places: Kolmogorov
    and Smirnov's sup |F_n(t) - (1 - q) Phi((t - m - low) / s) - q Phi((t - m - high) / s)|."""
    moments_of_y, _ = _three_moments(y)
    moments_of_z, _ = _three_moments(z)
    low, high, q = two_point_law(*(moments_of_y - moments_of_z))
    centre = float(z.mean())
    spread = float(z.std(ddof=1))
    if not (high > 0 and spread > 0):
        return False

    def mixture(t: np.ndarray) -> np.ndarray:
        at_low = (1 - q) * ndtr((t - centre - low) / spread)
        at_high = q * ndtr((t - centre - high) / spread)
        return np.asarray(at_low + at_high)

    return bool(stats.kstest(y, mixture).pvalue > NOT_REJECTED)


def two_point_law(mean: float, variance: float, third: float) -> tuple[float, float, float]:
    """The law on two points with three given moments (Gauss's quadrature with two nodes).

    With sigma^2 = variance, h = third / (2 sigma^3) and u = h + sqrt(1 + h^2): points mean - sigma
    / u and mean + sigma u, the higher with chance 1 / (1 + u^2).

    Args:
        mean: of the law.
        variance: at least 0; all is on the mean if it is 0.
        third: central moment.

    Returns:
        (lower point, higher point, chance of the higher one).
    """
    if variance <= 0:
        return mean, mean, 1.0
    spread = math.sqrt(variance)
    half = third / variance / spread / 2
    up = half + math.sqrt(1 + half * half)
    return mean - spread / up, mean + spread * up, 1 / (1 + up * up)


def epsilon_from_moments(y: np.ndarray, z: np.ndarray, delta: float, error: float) -> float:
    """The smallest epsilon on a confidence ellipsoid of three moments and the noise's deviation.

    Centre c = (moments of y - moments of z, sd z), covariance C = J Cov(z) J^T + Cov(y) by the
    delta method; points c + z_{alpha / 2} C^(1/2) u for 400 unit vectors u in four dimensions.
    Normal limits, as the third moment has no exact ones; half of the error is left for both sides
    of it.

    Args:
        y: (n,) projections with the record.
        z: (m,) projections without it.
        delta: in [0, 1).
        error: probability.
    """
    moments_of_y, covariance_of_y = _three_moments(y)
    moments_of_z, covariance_of_z = _three_moments(z)
    deviation = math.sqrt(moments_of_z[1])
    # slopes of (moments of X, deviation) by the moments of z
    slopes = np.vstack([-np.eye(3), [0.0, 0.5 / deviation, 0.0]])
    covariance = slopes @ covariance_of_z @ slopes.T
    covariance[:3, :3] += covariance_of_y
    centre = np.append(moments_of_y - moments_of_z, deviation)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    reach = float(stats.norm.isf(error / 2)) * root
    epsilons = []
    for mean, variance, third, noise in centre + DIRECTIONS @ reach.T:
        if mean <= 0:
            return 0.0
        low, high, q = two_point_law(mean, variance, third)
        epsilons.append(two_point_epsilon(low, high, q, noise, max(delta, TINY)))
    return min(epsilons)


def _three_moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean, variance and third central moment (3,), the covariance (3, 3) of these estimates): by
    their influence functions c, c^2 - m2 and c^3 - m3 - 3 m2 c, with c = x - mean."""
    mean = float(x.mean())
    c = x - mean
    second = float((c**2).mean())
    third = float((c**3).mean())
    influence = np.stack([c, c**2 - second, c**3 - third - 3 * second * c])
    return np.array([mean, second, third]), np.cov(influence) / len(x)


def two_point_epsilon(low: float, high: float, q: float, noise: float, delta: float) -> float:
    """Epsilon of normal noise that is shifted to ``high`` with chance q, else to ``low``.
    The largest of ln((q Phi(h - t) + (1 - q) Phi(l - t) - delta) / Phi(-t)) over thresholds t >= h
    + sqrt(3), in deviations of the noise.

    Args:
        low: the lower shift.
        high: the higher shift.
        q: chance of the higher one, in [0, 1].
        noise: its deviation, above 0.
        delta: above 0.
    """
    t = high / noise + ABOVE + SAMPLED_GRID
    beyond = q * ndtr(high / noise - t) + (1 - q) * ndtr(low / noise - t) - delta
    positive = beyond > 0
    log_ratios = np.log(beyond[positive]) - log_ndtr(-t[positive])
    return max(0.0, float(log_ratios.max(initial=0.0)))

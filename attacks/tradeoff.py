"""Trade-off curves, and the test of a stated one against the two error rates of an attack.

Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from attacks.statistics import bisect_refuted, check_levels, largest_refuted, upper_limit

Curve = Callable[[Any], Any]  # type I errors in [0, 1] -> type II errors, floats or arrays
GRID_POINTS = 400  # type I errors among which the most testable point is chosen
MAX_SCALE = 64.0  # times the noise that is stated: no larger fault is distinguished


# An accountant states a curve f, type I error -> the least type II error with which anyone can tell
# a record's presence from its absence (Dong, Roth and Su 2022). At delta 1e-5 hardly any number of
# runs shows anything, but at error rates of some per cent a few hundred runs do. Both error rates
# have upper limits (Clopper and Pearson 1934) that hold together at the stated confidence:
#
#     P[fpr <= u_fpr and fnr <= u_fnr] >= confidence;    u_fnr < f(u_fpr)  refutes f,
#
# for any mechanism and at any sample size, as f does not increase.


def gaussian_dp(mu: float) -> Curve:
    """The curve of mu-Gaussian DP (Dong, Roth and Su 2022, equation 6)."""
    # G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu)
    return lambda alpha: ndtr(ndtri(1 - np.asarray(alpha)) - mu)


def approximate_dp(epsilon: float, delta: float) -> Curve:
    """The curve of (epsilon, delta)-DP (Wasserman and Zhou 2010; Kairouz et al. 2015)."""
    # f(alpha) = max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha))
    up = math.exp(min(epsilon, 700.0))
    down = math.exp(-epsilon)

    def type_two_errors(alpha: Any) -> Any:
        alpha = np.asarray(alpha)
        return np.maximum(0.0, np.maximum(1 - delta - up * alpha, down * (1 - delta - alpha)))

    return type_two_errors


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of mu-GDP at ``delta`` (Dong, Roth and Su 2022, Corollary 2.13); 0 for mu <=
    0."""
    # delta(epsilon) = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2)
    if not mu > 0:
        return 0.0

    def excess_delta(eps: float) -> float:
        return float(ndtr(-eps / mu + mu / 2) - np.exp(eps + log_ndtr(-eps / mu - mu / 2))) - delta

    if excess_delta(0.0) <= 0:
        return 0.0
    high = mu * mu / 2 + mu * (2 + math.sqrt(-2 * math.log(delta)))
    return float(brentq(excess_delta, 0.0, high, xtol=1e-10))


@dataclass(frozen=True)
class TradeoffPoint:
    """Type I error ``alpha``, and the ``threshold`` on the log likelihood ratio that has it."""

    alpha: float
    threshold: float


@dataclass(frozen=True)
class CurveTest:
    """What a number of runs says of a stated trade-off curve."""

    refuted: bool  # the stated curve itself
    scale: float  # of the family's largest refuted member; above 1 if the stated one is, 0 for none
    fpr: float  # upper limit
    fnr: float  # upper limit
    runs: int


def error_rate_limits(tp: Any, fn: Any, fp: Any, tn: Any, confidence: float) -> tuple[Any, Any]:
    """Upper limits (FPR, FNR) that hold together at ``confidence`` (Clopper and Pearson 1934);
    floats or arrays."""
    tp, fn, fp, tn = (np.asarray(count, dtype=np.float64) for count in (tp, fn, fp, tn))
    half = (1 - confidence) / 2
    return upper_limit(fp, fp + tn, half), upper_limit(fn, fn + tp, half)


def most_testable_point(curve: Curve, runs: int, *, confidence: float = 0.95) -> TradeoffPoint:
    """The point of a curve that ``runs`` trials a side test best, chosen from the curve alone.

    It is the one whose upper limits, at the counts expected there, keep the largest share of the mu
    of the Gaussian curve through it.
    """
    inner = np.geomspace(0.5 / runs, 0.5, GRID_POINTS)
    alpha = np.concatenate([inner, 1 - inner[-2::-1]])
    beta = np.asarray(curve(alpha), dtype=np.float64)
    fpr, fnr = error_rate_limits(
        runs * (1 - beta), runs * beta, runs * alpha, runs * (1 - alpha), confidence
    )
    mu = _gaussian_mu(alpha, beta)
    share = np.where(mu > 1e-9, _gaussian_mu(fpr, fnr) / np.maximum(mu, 1e-9), -np.inf)
    best = int(np.argmax(share[1:-1])) + 1
    # The likelihood ratio dP/dQ at a point is minus the slope of the curve: the geometric mean of
    # the slopes on both sides.
    slopes = np.maximum(-np.diff(beta) / np.diff(alpha), 1e-300)
    threshold = float(np.log(slopes[best - 1] * slopes[best]) / 2)
    return TradeoffPoint(float(alpha[best]), threshold)


def _gaussian_mu(fpr: Any, fnr: Any) -> Any:
    """mu = Phi^-1(1 - fpr) - Phi^-1(fnr) of the Gaussian curve through a point."""
    low = 1e-300
    return ndtri(np.clip(1 - fpr, low, 1 - 1e-16)) - ndtri(np.clip(fnr, low, 1 - 1e-16))


def curve_test(
    present: Any,
    absent: Any,
    family: Callable[[float], Curve],
    *,
    threshold: float,
    confidence: float = 0.95,
) -> CurveTest:
    """Test ``family(1)`` on scores of independent runs with the record and without it.

    Args:
        present: scores (R,) of runs with the record, larger = with it.
        absent: scores (R',) of runs without it.
        family: scale > 0 -> curve; 1 is the stated one, a larger scale is less private.
        threshold: fixed before the scores were seen (``most_testable_point``).
        confidence: in (0, 1).

    Raises:
        ValueError: for empty scores and NaN.
    """
    present_scores = np.asarray(present, dtype=np.float64)
    absent_scores = np.asarray(absent, dtype=np.float64)
    if not _are_scores(present_scores) or not _are_scores(absent_scores):
        raise ValueError(
            f"scores {present_scores.shape} and {absent_scores.shape}: one-dimensional, not empty "
            "and without NaN is needed"
        )
    check_levels(0.0, confidence)
    tp = int((present_scores >= threshold).sum())
    fp = int((absent_scores >= threshold).sum())
    fn = len(present_scores) - tp
    tn = len(absent_scores) - fp
    fpr, fnr = (float(limit) for limit in error_rate_limits(tp, fn, fp, tn, confidence))
    refuted = bool(fnr < family(1.0)(fpr))
    scale = largest_refuted_scale(lambda s: bool(fnr < family(s)(fpr)), refuted)
    return CurveTest(refuted, scale, fpr, fnr, len(present_scores) + len(absent_scores))


def _are_scores(values: np.ndarray) -> bool:
    return values.ndim == 1 and len(values) > 0 and not np.isnan(values.sum())


def largest_refuted_scale(refuted: Callable[[float], bool], at_one: bool) -> float:
    """The largest refuted scale: above 1 if and only if scale 1 is refuted, 0 if 1 / MAX_SCALE is
    not."""
    if at_one:
        excess = largest_refuted(lambda s: refuted(1 + s), steps=10, limit=MAX_SCALE)
        return math.nextafter(1 + excess, math.inf)
    if not refuted(1 / MAX_SCALE):
        return 0.0
    return bisect_refuted(refuted, 1 / MAX_SCALE, 1.0, steps=9)

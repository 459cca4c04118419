"""Testing an accountant's whole trade-off curve at its most testable point.

An accountant states more than one (epsilon, delta): it states a curve f, type I error -> the least type II error with
which anyone can tell a record's presence from its absence (Dong, Roth and Su 2022). At delta 1e-5 hardly any number of
runs shows anything, but at error rates of some per cent a few hundred runs do. Both error rates have upper limits
(Clopper and Pearson 1934) that hold together at the stated confidence; if the second lies below f of the first, then f
is refuted, for any mechanism and at any sample size. That says nothing about a single (epsilon, delta) but that the
accountant's curve, from which its epsilon was read, is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from attacks.statistics import bisect_refuted, check_levels, largest_refuted, upper_limit

Curve = Callable[[Any], Any]  # type I errors in [0, 1] -> type II errors, floats or arrays
GRID_POINTS = 400  # points at which the most testable one is looked for
MAX_SCALE = 64.0  # times the noise that is stated: no larger fault is distinguished


def gaussian_dp(mu: float) -> Curve:
    """The curve of mu-Gaussian DP (Dong, Roth and Su 2022, equation 6)."""
    return lambda alpha: ndtr(ndtri(1 - np.asarray(alpha)) - mu)


def approximate_dp(epsilon: float, delta: float) -> Curve:
    """The curve of (epsilon, delta)-DP (Wasserman and Zhou 2010; Kairouz et al. 2015)."""
    up, down = math.exp(min(epsilon, 700.0)), math.exp(-epsilon)

    def type_two_errors(alpha: Any) -> Any:
        alpha = np.asarray(alpha)
        return np.maximum(0.0, np.maximum(1 - delta - up * alpha, down * (1 - delta - alpha)))

    return type_two_errors


@dataclass(frozen=True)
class TradeoffPoint:
    """Where a curve is tested: type I error ``alpha`` and the log likelihood ratio ``threshold`` that has it."""

    alpha: float
    threshold: float


@dataclass(frozen=True)
class CurveTest:
    """refuted: whether the curve itself is; scale: the largest member of its family that is refuted (0: none).

    scale is in units of the stated curve: above 1 exactly where that is refuted. fpr, fnr: the rates' upper limits.
    """

    refuted: bool
    scale: float
    fpr: float
    fnr: float
    runs: int


def error_rate_limits(tp: Any, fn: Any, fp: Any, tn: Any, confidence: float) -> tuple[Any, Any]:
    """Upper limits (FPR, FNR) that hold together at ``confidence`` (Clopper and Pearson 1934); floats or arrays."""
    tp, fn, fp, tn = (np.asarray(count, dtype=np.float64) for count in (tp, fn, fp, tn))
    half = (1 - confidence) / 2
    return upper_limit(fp, fp + tn, half), upper_limit(fn, fn + tp, half)


def most_testable_point(curve: Curve, runs: int, *, confidence: float = 0.95) -> TradeoffPoint:
    """The point at which ``runs`` trials a side lose least to their size, chosen from the curve alone.

    Error rates are compared as the mu of the Gaussian curve through them: chosen is the point whose limits, at the
    counts expected there, keep the largest share of its mu.
    """
    inner = np.geomspace(0.5 / runs, 0.5, GRID_POINTS)
    alpha = np.concatenate([inner, 1 - inner[-2::-1]])
    beta = np.asarray(curve(alpha), dtype=np.float64)
    fpr, fnr = error_rate_limits(runs * (1 - beta), runs * beta, runs * alpha, runs * (1 - alpha), confidence)
    true = _gaussian_mu(alpha, beta)
    share = np.where(true > 1e-9, _gaussian_mu(fpr, fnr) / np.maximum(true, 1e-9), -np.inf)
    at = int(np.argmax(share[1:-1])) + 1
    slopes = np.maximum(-np.diff(beta) / np.diff(alpha), 1e-300)
    # dP/dQ there is minus the slope
    return TradeoffPoint(float(alpha[at]), float(np.log(slopes[at - 1] * slopes[at]) / 2))


def _gaussian_mu(fpr: Any, fnr: Any) -> Any:
    low = 1e-300
    return ndtri(np.clip(1 - fpr, low, 1 - 1e-16)) - ndtri(np.clip(fnr, low, 1 - 1e-16))


def curve_test(
    inside: Any, outside: Any, family: Callable[[float], Curve], *, threshold: float, confidence: float = 0.95
) -> CurveTest:
    """Test ``family(1)`` on scores (R,) of independent runs with and (R',) without the record; larger = with it.

    family: scale > 0 -> curve, 1 = as stated, larger = less private; threshold: fixed before the scores were seen, as
    ``most_testable_point`` gives one for log likelihood ratios. Raises ValueError for empty scores and NaN.
    """
    one, other = (np.asarray(side, dtype=np.float64) for side in (inside, outside))
    if one.ndim != 1 or other.ndim != 1 or not len(one) or not len(other) or np.isnan([one.sum(), other.sum()]).any():
        raise ValueError(f"scores {one.shape} and {other.shape}: one-dimensional, not empty and without NaN is needed")
    check_levels(0.0, confidence)
    tp, fp = int((one >= threshold).sum()), int((other >= threshold).sum())
    fpr, fnr = (float(x) for x in error_rate_limits(tp, len(one) - tp, fp, len(other) - fp, confidence))
    refuted = bool(fnr < family(1.0)(fpr))
    scale = largest_refuted_scale(lambda s: bool(fnr < family(s)(fpr)), refuted)
    return CurveTest(refuted, scale, fpr, fnr, len(one) + len(other))


def largest_refuted_scale(refuted: Callable[[float], bool], at_one: bool) -> float:
    """The largest refuted scale: above 1 exactly where scale 1 is refuted, 0 where hardly any is."""
    if at_one:
        return math.nextafter(1 + largest_refuted(lambda s: refuted(1 + s), steps=10, limit=MAX_SCALE), math.inf)
    if not refuted(1 / MAX_SCALE):
        return 0.0
    return bisect_refuted(refuted, 1 / MAX_SCALE, 1.0, steps=9)

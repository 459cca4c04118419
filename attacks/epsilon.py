"""Lower bounds on epsilon from what an attack got right, each with the condition it needs.

From the two error rates of a membership attack, from scores whose threshold is chosen on other
trials, from many canaries in a single run, from a record that is identified among very many, and
against the whole trade-off curve that an accountant states. Imports no torch.

The ``validity`` of a bound:

- ``finite_sample``: holds at the stated confidence for any mechanism and any sample size.
- ``curve``: the stated trade-off curve is refuted if the value is above the stated one, at the
  stated confidence and for any sample size. The value itself is read off a curve of the same
  family, so it is no bound at delta.
- ``gaussian_only``: also needs a trade-off curve no worse than a Gaussian's, so it never decides a
  verdict alone.
- ``credible``: Bayesian; says nothing about coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, betaln, log_ndtr, ndtr, ndtri

from attacks.statistics import (
    bisect_refuted,
    chance_of_at_least,
    chance_of_exactly,
    check_confusion_counts,
    check_levels,
    largest_refuted,
    lower_limit,
    shared_confidence,
    upper_limit,
)

Curve = Callable[[Any], Any]  # type I errors in [0, 1] -> type II errors, floats or arrays
ConfusionCounts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # tp, fn, fp, tn
Validity = Literal["finite_sample", "curve", "gaussian_only", "credible"]

VALIDITY: dict[str, Validity] = {
    "clopper_pearson": "finite_sample",
    "one_run": "finite_sample",
    "fdp_one_run": "finite_sample",
    "curve": "curve",
    "gaussian": "gaussian_only",
    "fdp_one_run_gaussian": "gaussian_only",
    "bayesian": "credible",
}
GRID_POINTS = 400  # type I errors among which the most testable point is chosen
MAX_SCALE = 64.0  # times the noise that is stated: no larger fault is distinguished
MAX_CANDIDATES = 200  # thresholds that are compared
# The limits that thresholds are compared at: wide enough that cells empty by luck win little.
COMPARISON_CONFIDENCE = 0.9
LARGEST_BOUND = 1e9
SMALLEST_LOG_TAIL = math.log(1e-250)  # below this, betainc underflows and its bound is used
POSTERIOR_POINTS = 4096  # midpoints of the quantiles of the FPR's posterior


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


@lru_cache(maxsize=4096)
def one_run(m: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95) -> float:
    """A bound from a single run (Steinke, Nasr and Jagielski 2023, Theorem 5.2).

    Args:
        m: records, each of which was in or out by an independent fair coin.
        guesses: how many of them the attack guessed, a number fixed beforehand.
        correct: how many guesses are right.
        delta: in [0, 1).
        confidence: in (0, 1).
    """
    check_guesses(m, guesses, correct)
    check_levels(delta, confidence)
    if guesses == 0:
        return 0.0
    return largest_refuted(
        lambda eps: one_run_p_value(m, guesses, correct, eps, delta) <= 1 - confidence
    )


def one_run_p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """P[at least ``correct`` right guesses] under any (epsilon, delta)-DP mechanism, at most."""
    # With W ~ Binomial(r, e^epsilon / (1 + e^epsilon)) of r guesses,
    #     P[correct >= v] <= P[W >= v] + 2 m delta max over i in 1..v of P[v - i <= W < v] / i.
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(chance_of_at_least(correct, guesses, rate))
    if delta == 0 or correct == 0:
        return min(tail, 1.0)
    below = np.cumsum(chance_of_exactly(np.arange(correct - 1, -1, -1), guesses, rate))
    return min(tail + 2 * m * delta * float(np.max(below / np.arange(1, correct + 1))), 1.0)


def check_guesses(m: int, guesses: int, correct: int) -> None:
    """Raises ValueError for counts that no attack on m records has."""
    if not 0 <= correct <= guesses <= m or not m >= 1:
        raise ValueError(
            f"m={m}, guesses={guesses}, correct={correct}: 0 <= correct <= guesses <= m is needed"
        )


# Mahloujifar, Melis and Chaudhuri (2024): one run against a whole trade-off curve f. That is
# refuted, so a bound on epsilon at delta is distribution-free only if f is the curve of all
# (epsilon, delta)-DP mechanisms.
#
# A mechanism is f-DP if no test tells a record's presence from its absence with type I error a and
# type II error below f(a), in either direction. Let m records be in or out by independent fair
# coins, and let the attack make exactly ``guesses`` guesses, p_j being the chance that j are right.
# Their Theorem: for every set T of counts,
#
#     sum_(j in T) j p_j / m  <=  F(sum_(j in T) (guesses - j + 1) p_(j-1) / m),   F(x) = 1 - f(x).
#
# If at least ``correct`` right guesses had a chance of ``alpha`` or more, these inequalities would
# force more than all of the probability (their Algorithm 3): then f is refuted at level alpha.
# Nothing else is assumed.


def is_fdp_refuted(m: int, guesses: int, correct: int, curve: Curve, alpha: float) -> bool:
    """Whether f-DP for ``curve`` gives so many right guesses a chance below ``alpha``.

    ``curve`` must be its own inverse, as one that holds for both orders of a pair of neighbours is.
    Raises ValueError for impossible counts.
    """
    check_guesses(m, guesses, correct)
    right = alpha * correct / m
    wrong = alpha * (guesses - correct) / m
    for count in range(correct - 1, -1, -1):
        least = max(wrong, float(curve(1 - right)))  # the inverse of F, as f is its own inverse
        if least == wrong:
            break  # nothing is forced any more
        right = min(right + count / (guesses - count) * (least - wrong), 1.0)
        wrong = least
    return right + wrong > guesses / m


def largest_refuted_parameter(
    m: int,
    guesses: int,
    correct: int,
    family: Callable[[float], Curve],
    *,
    confidence: float = 0.95,
) -> float:
    """The largest parameter whose curve is refuted, 0 for none; ``family`` takes a parameter >= 0,
    where 0 is perfect privacy, to its curve."""
    check_guesses(m, guesses, correct)
    check_levels(0.0, confidence)
    return largest_refuted(
        lambda value: is_fdp_refuted(m, guesses, correct, family(value), 1 - confidence)
    )


@lru_cache(maxsize=4096)
def fdp_one_run(
    m: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95
) -> float:
    """A bound on epsilon at ``delta`` for any mechanism: the largest epsilon whose whole DP region
    is refuted."""
    check_levels(delta, confidence)
    return largest_refuted_parameter(
        m, guesses, correct, lambda eps: approximate_dp(eps, delta), confidence=confidence
    )


@lru_cache(maxsize=4096)
def fdp_one_run_mu(m: int, guesses: int, correct: int, *, confidence: float = 0.95) -> float:
    """The largest mu for which mu-Gaussian DP is refuted. Read as an epsilon it is an estimate, no
    bound."""
    return largest_refuted_parameter(m, guesses, correct, gaussian_dp, confidence=confidence)


def one_run_bounds(
    m: int, counts: Sequence[tuple[int, int]], *, delta: float, confidence: float
) -> dict[str, float]:
    """Both bounds by name, each the best of several (guesses, right guesses); all hold together at
    ``confidence``."""
    each = shared_confidence(confidence, 2 * len(counts))
    methods: dict[str, Callable[..., float]] = {"one_run": one_run, "fdp_one_run": fdp_one_run}
    best = {}
    for name, bound in methods.items():
        best[name] = max(bound(m, *pair, delta=delta, confidence=each) for pair in counts)
    return best


@dataclass(frozen=True)
class Bound:
    """A lower bound: epsilon is at least ``value`` at ``delta``, with ``confidence``.

    Attributes:
        value: epsilon, natural logarithm, at least 0.
        method: how it was computed, e.g. ``clopper_pearson``.
        validity: what it needs; see the module's text.
        delta: in [0, 1).
        confidence: in (0, 1).
    """

    value: float
    method: str
    validity: Validity
    delta: float
    confidence: float


def check_scores(scores: Any, member: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores (n,) as float64 and their membership bits (n,) as bool. Raises ValueError for other
    shapes and NaN."""
    values = np.asarray(scores, dtype=np.float64)
    is_member = np.asarray(member).astype(bool)
    if values.ndim != 1 or values.shape != is_member.shape or np.isnan(values).any():
        raise ValueError(
            f"scores {values.shape}, member {is_member.shape}: equally long, one-dimensional, "
            "no NaN"
        )
    return values, is_member


def best_threshold(
    values: np.ndarray, is_member: np.ndarray, delta: float, method: str = "clopper_pearson"
) -> float:
    """The threshold at which ``method`` bounds most on these trials, from scores (n,) and
    membership bits (n,).

    If it bounds nothing anywhere, the threshold with the largest gap between TPR and FPR. Raises
    KeyError for methods without a threshold.
    """
    ordered = np.unique(values)
    candidates = ordered[np.unique(np.linspace(0, len(ordered) - 1, MAX_CANDIDATES).astype(int))]
    counts = confusion_counts_at(values, is_member, candidates)
    gains = THRESHOLD_GAINS[method](counts, delta)
    if gains.max() > 0:
        return float(candidates[int(np.argmax(gains))])
    tp, fn, fp, tn = counts
    return float(candidates[int(np.argmax(tp / (tp + fn) - fp / (fp + tn)))])


def confusion_counts_at(
    values: np.ndarray, is_member: np.ndarray, thresholds: np.ndarray
) -> ConfusionCounts:
    """(tp, fn, fp, tn) of the rules "value >= threshold means member", each (k,)."""
    members = np.sort(values[is_member])
    non_members = np.sort(values[~is_member])
    fn = np.searchsorted(members, thresholds)
    tn = np.searchsorted(non_members, thresholds)
    return len(members) - fn, fn, len(non_members) - tn, tn


def _clopper_pearson_gain(counts: ConfusionCounts, delta: float) -> np.ndarray:
    fpr, fnr = error_rate_limits(*counts, COMPARISON_CONFIDENCE)
    return _log_ratios(fpr, fnr, delta)


def _gaussian_gain(counts: ConfusionCounts, delta: float) -> np.ndarray:
    """mu: epsilon grows with it."""
    fpr, fnr = error_rate_limits(*counts, COMPARISON_CONFIDENCE)
    return ndtri(1 - fpr) - ndtri(fnr)


def _bayesian_gain(counts: ConfusionCounts, delta: float) -> np.ndarray:
    tp, fn, fp, tn = (count + 0.5 for count in counts)
    upper = 1 - (1 - COMPARISON_CONFIDENCE) / 2  # quantile of Jeffreys' posterior
    return _log_ratios(betaincinv(fp, tn, upper), betaincinv(fn, tp, upper), delta)


def _log_ratios(fpr: np.ndarray, fnr: np.ndarray, delta: float) -> np.ndarray:
    powers = np.stack([(1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr])
    return np.log(np.maximum(powers, 1e-300)).max(0)


THRESHOLD_GAINS: dict[str, Callable[[ConfusionCounts, float], np.ndarray]] = {
    "clopper_pearson": _clopper_pearson_gain,
    "gaussian": _gaussian_gain,
    "bayesian": _bayesian_gain,
}


# (epsilon, delta)-DP bounds both directions of the test (Kairouz, Oh and Viswanath 2015, theorem
# 2.1):
#     fpr + e^epsilon fnr >= 1 - delta,   fnr + e^epsilon fpr >= 1 - delta,
# so that with the upper limits of both rates
#     epsilon >= max(ln (1 - delta - fnr) / fpr, ln (1 - delta - fpr) / fnr, 0).
def clopper_pearson(
    tp: int, fn: int, fp: int, tn: int, *, delta: float, confidence: float = 0.95
) -> float:
    """Lower bound from two error rates (Jagielski et al. 2020; Nasr et al. 2021), natural
    logarithm.

    Each rate's upper limit takes half of alpha, so both directions hold at once. Needs independent
    trials (one training each) and a threshold that does not depend on them.
    """
    fpr, fnr = _error_limits(tp, fn, fp, tn, delta, confidence)
    return max(_log_ratio(1 - delta - fnr, fpr), _log_ratio(1 - delta - fpr, fnr), 0.0)


def gaussian(
    tp: int, fn: int, fp: int, tn: int, *, delta: float, confidence: float = 0.95
) -> float:
    """The epsilon at ``delta`` of the mu-Gaussian DP that two error rates refute (Nasr et al.
    2023).

    Holds only for mechanisms whose trade-off curve is at least Gaussian; needs 0 < delta < 1.
    """
    # mu = Phi^-1(1 - fpr) - Phi^-1(fnr) at the upper limits of both rates
    fpr, fnr = _error_limits(tp, fn, fp, tn, delta, confidence)
    if not delta > 0:
        raise ValueError(f"delta={delta}: a Gaussian mechanism has no finite epsilon at delta 0")
    return gaussian_epsilon(float(ndtri(1 - fpr) - ndtri(fnr)), delta)


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


def bayesian(
    tp: int, fn: int, fp: int, tn: int, *, delta: float, confidence: float = 0.95
) -> float:
    """The epsilon whose DP region holds 1 - confidence of the posterior (Zanella-Beguelin et al.
    2023).

    Both rates have Jeffreys priors. At epsilon 0 the region is a line of mass zero, so the value is
    above 0 even on a null.
    """
    # P[(fpr, fnr) in R(epsilon)] = integral of (F(1 - f(1 - x)) - F(f(x))) dG(x), where f is the
    # curve of (epsilon, delta)-DP, and F, G are the Beta posteriors of FNR and FPR: the inner
    # integral is a distribution function, and the midpoint rule over quantiles of G does the outer.
    check_confusion_counts(tp, fn, fp, tn)
    check_levels(delta, confidence)
    alpha = 1 - confidence
    quantiles = (np.arange(POSTERIOR_POINTS) + 0.5) / POSTERIOR_POINTS
    x = betaincinv(0.5 + fp, 0.5 + tn, quantiles)

    def excess_mass(eps: float) -> float:
        smallest_fnr = approximate_dp(eps, delta)
        low = smallest_fnr(x)
        high = 1 - smallest_fnr(1 - x)
        mass = betainc(0.5 + fn, 0.5 + tp, high) - betainc(0.5 + fn, 0.5 + tp, low)
        return float(np.clip(mass, 0, 1).mean()) - alpha

    if excess_mass(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess_mass(high) < 0:
        high *= 2
    return float(brentq(excess_mass, 0.0, high, xtol=1e-6))


def _error_limits(
    tp: int, fn: int, fp: int, tn: int, delta: float, confidence: float
) -> tuple[float, float]:
    """Simultaneous upper limits (FPR, FNR) at ``confidence``."""
    check_confusion_counts(tp, fn, fp, tn)
    check_levels(delta, confidence)
    fpr, fnr = error_rate_limits(tp, fn, fp, tn, confidence)
    return float(fpr), float(fnr)


def _log_ratio(power: float, error: float) -> float:
    if power <= 0:
        return 0.0
    return math.log(power / error)


def from_scores(
    scores: Any,
    member: Any,
    *,
    delta: float,
    confidence: float = 0.95,
    method: Literal["clopper_pearson", "gaussian", "bayesian"] = "clopper_pearson",
    thresholds: Sequence[float] | None = None,
    generator: np.random.Generator | None = None,
) -> Bound:
    """A lower bound on epsilon from the scores of independent trials, one training each.

    Args:
        scores: (n,), larger = member.
        member: (n,) booleans.
        delta: at which epsilon is bounded, in [0, 1).
        confidence: in (0, 1).
        method: ``clopper_pearson`` holds for any mechanism (Jagielski et al. 2020), ``gaussian``
            for Gaussian trade-off curves (Nasr et al. 2023); ``bayesian`` is a credible bound
            (Zanella-Beguelin et al. 2023).
        thresholds: fixed before the scores were seen; several share alpha (Bonferroni). Without
            them, a random half of the trials picks the threshold at which ``method`` bounds most,
            and the rest evaluates it: a choice on the evaluated trials exceeds the truth on a null.
        generator: draws that half; needed without ``thresholds``.

    Returns:
        The largest bound over the thresholds, with its validity.

    Raises:
        ValueError: for NaN, unequal lengths, an unknown method, or too few trials to split.

    Example:
        >>> scores = [3.0] * 100 + [0.0] * 100
        >>> member = [True] * 100 + [False] * 100
        >>> round(from_scores(scores, member, delta=1e-5, thresholds=[1.0]).value, 2)
        3.28
    """
    bounds = {"clopper_pearson": clopper_pearson, "gaussian": gaussian, "bayesian": bayesian}
    if method not in bounds:
        raise ValueError(f"method={method!r}: clopper_pearson, gaussian or bayesian")
    check_levels(delta, confidence)
    values, is_member = check_scores(scores, member)
    if thresholds is None:
        values, is_member, thresholds = _split_trials(values, is_member, delta, generator, method)
    if not len(thresholds) >= 1:
        raise ValueError("thresholds: at least one is needed")
    each = shared_confidence(confidence, len(thresholds))
    levels = np.asarray(thresholds, dtype=np.float64)
    columns = confusion_counts_at(values, is_member, levels)
    rows = zip(*(column.tolist() for column in columns))
    value = max(bounds[method](*counts, delta=delta, confidence=each) for counts in rows)
    return Bound(value, method, VALIDITY[method], delta, confidence)


def one_run_from_scores(
    scores: Any,
    member: Any,
    *,
    delta: float,
    generator: np.random.Generator,
    guesses: Sequence[tuple[int, int]],
    confidence: float = 0.95,
    method: Literal["one_run", "fdp_one_run", "fdp_one_run_gaussian"] = "one_run",
) -> Bound:
    """A lower bound on epsilon from one run that includes each record by an independent fair coin.

    Args:
        scores: (m,), larger = member.
        member: (m,) inclusion bits of the run.
        delta: at which epsilon is bounded, in [0, 1).
        generator: breaks ties, so that the order of the records cannot give their membership away.
        guesses: pairs (k_in, k_out), fixed beforehand: the k_in highest scores are guessed in, the
            k_out lowest out; several pairs share alpha (Bonferroni).
        confidence: in (0, 1).
        method: ``one_run`` (Steinke, Nasr and Jagielski 2023) and ``fdp_one_run`` (Mahloujifar,
            Melis and Chaudhuri 2024) hold for any mechanism; ``fdp_one_run_gaussian`` is an
            estimate for Gaussian trade-off curves.

    Returns:
        The largest bound over the pairs, with its validity.

    Raises:
        ValueError: for NaN, unequal lengths, an unknown method, or pairs that guess more than m.
    """
    if method not in ONE_RUN_BOUNDS:
        raise ValueError(f"method={method!r}: allowed are {', '.join(ONE_RUN_BOUNDS)}")
    each = shared_confidence(confidence, max(len(guesses), 1))
    counts = right_guesses(scores, member, guesses, generator)
    bound = ONE_RUN_BOUNDS[method]
    value = max(bound(len(scores), *pair, delta=delta, confidence=each) for pair in counts)
    return Bound(value, method, VALIDITY[method], delta, confidence)


def right_guesses(
    scores: Any, member: Any, guesses: Sequence[tuple[int, int]], generator: np.random.Generator
) -> list[tuple[int, int]]:
    """(guesses made, guesses right) for each pair (k_in, k_out) of ``one_run_from_scores``.

    Raises ValueError for pairs that guess more than there is, and for no pair.
    """
    values, is_member = check_scores(scores, member)
    if not guesses or any(min(pair) < 0 or sum(pair) > len(values) for pair in guesses):
        raise ValueError(
            f"guesses={guesses}: pairs (k_in, k_out) with k_in + k_out <= {len(values)} are needed"
        )
    ranked = is_member[np.lexsort((generator.permutation(len(values)), -values))]
    counts = []
    for k_in, k_out in guesses:
        right_in = int(ranked[:k_in].sum())
        right_out = int((~ranked[len(ranked) - k_out :]).sum())
        counts.append((k_in + k_out, right_in + right_out))
    return counts


ONE_RUN_BOUNDS: dict[str, Callable[..., float]] = {
    "one_run": one_run,
    "fdp_one_run": fdp_one_run,
    "fdp_one_run_gaussian": lambda *counts, delta, confidence: gaussian_epsilon(
        fdp_one_run_mu(*counts, confidence=confidence), delta
    ),
}


def _split_trials(
    values: np.ndarray,
    is_member: np.ndarray,
    delta: float,
    generator: np.random.Generator | None,
    method: str,
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """(scores, membership bits, threshold) of the half that evaluates, the threshold chosen on the
    other half."""
    if generator is None:
        raise ValueError("generator=None: one is needed to split the trials")
    chosen = np.zeros(len(values), dtype=bool)
    for side in (np.flatnonzero(is_member), np.flatnonzero(~is_member)):
        chosen[generator.permutation(side)[: int(len(side) * 0.5)]] = True
    for half in (is_member[chosen], is_member[~chosen]):
        if not half.any() or half.all():
            raise ValueError(
                f"{int(is_member.sum())} members of {len(is_member)} trials: too few to split"
            )
    threshold = best_threshold(values[chosen], is_member[chosen], delta, method)
    return values[~chosen], is_member[~chosen], [threshold]


# Bounds from a secret s drawn among very many, with a null that is known exactly. A game with two
# hypotheses won n times out of n shows no epsilon above ln n. If the record is drawn at random from
# many, and all of them have the same neighbour D0 (the data without the record), one game shows
# more:
#     P(identified) = E_s P(M(D_s) in A_s)  <=  e^epsilon E_s P(M(D0) in A_s) + delta,
# and the last mean is the chance p0 that a guess which knows nothing of s meets it, whatever the
# mechanism. With a lower limit p of the share of games won,
#     epsilon >= ln((p - delta) / p0).
# For a direction s that is uniform on the sphere in m dimensions and a guess v, cos(v, s) has the
# law of one coordinate of the sphere: (1 + cos) / 2 ~ Beta((m-1)/2, (m-1)/2), and cos^2 ~ Beta(1/2,
# (m-1)/2).


def log_chance_of_cosine(cosine: np.ndarray, dimensions: int) -> np.ndarray:
    """ln P(cos(v, s) >= cosine) for a fixed v and s uniform on the sphere in ``dimensions`` >= 2;
    cosine in [-1, 1]."""
    if dimensions < 2:
        raise ValueError(f"dimensions={dimensions}: at least 2 are needed")
    c = np.clip(np.asarray(cosine, dtype=np.float64), -1, 1)
    a = (dimensions - 1) / 2
    with np.errstate(divide="ignore", under="ignore"):
        tail = 0.5 * betainc(a, 0.5, np.maximum(1 - c * c, 0))
        plain = np.log(np.where(c >= 0, tail, 1 - tail))
        # With x = 1 - c^2, the integral of t^(a-1) (1-t)^(-1/2) up to x is below x^a (1 - x)^(-1/2)
        # / a: far out, this takes the place of a tail that underflows.
        log_integral = np.log(np.maximum(1 - c * c, 1e-300)) * a - math.log(a) - betaln(a, 0.5)
        far = log_integral - 0.5 * np.log(np.maximum(c * c, 1e-300)) + math.log(0.5)
    return np.where((c > 0) & (tail < 1e-250), np.minimum(far, SMALLEST_LOG_TAIL), plain)


def bound_from_cosines(
    cosines: np.ndarray, threshold: float, dimensions: int, *, delta: float, confidence: float
) -> float:
    """Lower bound on epsilon from cosines (n,) of independent games; threshold: fixed before they
    were seen."""
    values = np.asarray(cosines, dtype=np.float64)
    if values.ndim != 1 or not len(values) or np.isnan(values).any():
        raise ValueError(
            f"cosines {values.shape}: numbers (n,) without NaN are needed, at least one"
        )
    won = int((values >= threshold).sum())
    log_chance = float(log_chance_of_cosine(np.array(threshold), dimensions))
    return _bound_from_wins(won, len(values), log_chance, delta, confidence)


def bound_from_identifications(
    won: int, games: int, log_candidates: float, *, delta: float, confidence: float
) -> float:
    """Lower bound on epsilon from ``won`` of ``games``, each a name among e^log_candidates equally
    likely ones."""
    if not 0 <= won <= games or games < 1:
        raise ValueError(
            f"won={won}, games={games}: at most the games, and at least one of them, is needed"
        )
    return _bound_from_wins(won, games, -log_candidates, delta, confidence)


def _bound_from_wins(
    won: int, games: int, log_chance: float, delta: float, confidence: float
) -> float:
    share = lower_limit(won, games, 1 - confidence)
    if share <= delta:
        return 0.0
    return min(max(math.log(share - delta) - log_chance, 0.0), LARGEST_BOUND)


def best_cosine_threshold(cosines: np.ndarray, dimensions: int, delta: float) -> float:
    """The threshold that bounds most on these games, for use on others; at least a tenth of the
    games reach it."""
    ordered = np.sort(np.asarray(cosines, dtype=np.float64))
    n = len(ordered)
    ranks = np.unique(np.linspace(0, max(0, n - max(5, n // 10)), 60).astype(int))
    thresholds = ordered[ranks]
    share = lower_limit(n - ranks, n, 0.05)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_shares = np.log(np.maximum(share - delta, 1e-300))
        gains = log_shares - log_chance_of_cosine(thresholds, dimensions)
    return float(thresholds[int(np.argmax(gains))])

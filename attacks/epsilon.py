"""Lower bounds on epsilon from what an attack got right, each with the condition it needs. Imports
no torch.

From the two error rates of a membership attack, from scores whose threshold is chosen on other
trials, from many canaries in a single run, and from a record that is identified among very many;
and tests of an accountant's whole trade-off curve.

``finite_sample`` bounds hold at the stated confidence for any mechanism and any sample size.
``curve``: the accountant's whole trade-off curve is refuted wherever the value is above what it
    states, at the stated confidence and for any sample size; the value itself is read off a curve
    of the same family, so it is no bound at delta. ``gaussian_only``
ones also need a trade-off curve no worse than a Gaussian's, so they never decide a verdict alone;
``credible`` ones are Bayesian and say nothing about coverage.
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

# An accountant states a curve f, type I error -> the least type II error with which anyone can tell
# a record's presence from its absence (Dong, Roth and Su 2022). At delta 1e-5 hardly any number of
# runs shows anything, but at error rates of some per cent a few hundred runs do. Both error rates
# have upper limits (Clopper and Pearson 1934) that hold together at the stated confidence; if the
# second lies below f of the first, then f is refuted, for any mechanism and at any sample size.

Curve = Callable[[Any], Any]  # type I errors in [0, 1] -> type II errors, floats or arrays
GRID_POINTS = 400  # points at which the most testable one is looked for
MAX_SCALE = 64.0  # times the noise that is stated: no larger fault is distinguished


def gaussian_dp(mu: float) -> Curve:
    """The curve of mu-Gaussian DP (Dong, Roth and Su 2022, equation 6)."""
    return lambda alpha: ndtr(ndtri(1 - np.asarray(alpha)) - mu)


def approximate_dp(epsilon: float, delta: float) -> Curve:
    """The curve of (epsilon, delta)-DP (Wasserman and Zhou 2010; Kairouz et al. 2015)."""
    up = math.exp(min(epsilon, 700.0))
    down = math.exp(-epsilon)

    def type_two_errors(alpha: Any) -> Any:
        alpha = np.asarray(alpha)
        return np.maximum(0.0, np.maximum(1 - delta - up * alpha, down * (1 - delta - alpha)))

    return type_two_errors


@dataclass(frozen=True)
class TradeoffPoint:
    """Type I error ``alpha``, and the log likelihood ratio ``threshold`` that has it."""

    alpha: float
    threshold: float


@dataclass(frozen=True)
class CurveTest:
    """refuted: whether the curve itself is; scale: the largest member of its family that is refuted
    (0: none).

    scale is in units of the stated curve: above 1 exactly where that is refuted. fpr, fnr: the
        rates' upper limits."""

    refuted: bool
    scale: float
    fpr: float
    fnr: float
    runs: int


def error_rate_limits(tp: Any, fn: Any, fp: Any, tn: Any, confidence: float) -> tuple[Any, Any]:
    """Upper limits (FPR, FNR) that hold together at ``confidence`` (Clopper and Pearson 1934);
    floats or arrays."""
    tp, fn, fp, tn = (np.asarray(count, dtype=np.float64) for count in (tp, fn, fp, tn))
    half = (1 - confidence) / 2
    return upper_limit(fp, fp + tn, half), upper_limit(fn, fn + tp, half)


def most_testable_point(curve: Curve, runs: int, *, confidence: float = 0.95) -> TradeoffPoint:
    """The point at which ``runs`` trials a side lose least to their size, chosen from the curve
    alone: whose limits, at the counts expected there, keep the largest share of the mu of the
        Gaussian curve through it."""
    inner = np.geomspace(0.5 / runs, 0.5, GRID_POINTS)
    alpha = np.concatenate([inner, 1 - inner[-2::-1]])
    beta = np.asarray(curve(alpha), dtype=np.float64)
    fpr, fnr = error_rate_limits(
        runs * (1 - beta), runs * beta, runs * alpha, runs * (1 - alpha), confidence
    )
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
    inside: Any,
    outside: Any,
    family: Callable[[float], Curve],
    *,
    threshold: float,
    confidence: float = 0.95,
) -> CurveTest:
    """Test ``family(1)`` on scores (R,) of independent runs with and (R',) without the record;
    larger = with it.

    family: scale > 0 -> curve, 1 = as stated, larger = less private; threshold: fixed before the
        scores were seen (``most_testable_point``). Raises ValueError for empty scores and NaN.
    """
    one, other = (np.asarray(side, dtype=np.float64) for side in (inside, outside))
    if (
        one.ndim != 1
        or other.ndim != 1
        or not len(one)
        or not len(other)
        or np.isnan([one.sum(), other.sum()]).any()
    ):
        raise ValueError(
            f"scores {one.shape} and {other.shape}: one-dimensional, not empty and "
            "without NaN is needed"
        )
    check_levels(0.0, confidence)
    tp = int((one >= threshold).sum())
    fp = int((other >= threshold).sum())
    fpr, fnr = (
        float(x) for x in error_rate_limits(tp, len(one) - tp, fp, len(other) - fp, confidence)
    )
    refuted = bool(fnr < family(1.0)(fpr))
    scale = largest_refuted_scale(lambda s: bool(fnr < family(s)(fpr)), refuted)
    return CurveTest(refuted, scale, fpr, fnr, len(one) + len(other))


def largest_refuted_scale(refuted: Callable[[float], bool], at_one: bool) -> float:
    """The largest refuted scale: above 1 exactly where scale 1 is refuted, 0 where hardly any
    is."""
    if at_one:
        return math.nextafter(
            1 + largest_refuted(lambda s: refuted(1 + s), steps=10, limit=MAX_SCALE), math.inf
        )
    if not refuted(1 / MAX_SCALE):
        return 0.0
    return bisect_refuted(refuted, 1 / MAX_SCALE, 1.0, steps=9)


@lru_cache(maxsize=4096)
def one_run(m: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95) -> float:
    """Steinke, Nasr and Jagielski (2023), Theorem 5.2: a bound from a single run.

    m: records that were each in or out by an independent fair coin; guesses: how many the attack
        guessed, a number fixed beforehand; correct: how many of these are right.
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
# refuted, so a bound on epsilon at delta is distribution-free only where f is the curve of all
# (epsilon, delta)-DP mechanisms.
#
# A mechanism is f-DP if no test tells a record's presence from its absence with type I error a and
# type II error below f(a), in either direction. Let m records be in or out by independent fair
# coins, and let the attack make exactly ``guesses`` guesses, p_j being the chance that j are right.
# Their Theorem: for every set T of counts,
#
# sum over j in T of j p_j / m  <=  F(sum over j in T of (guesses - j + 1) p_(j-1) / m),     F(x) =
# 1 - f(x).
#
# If at least ``correct`` right guesses had a chance of ``alpha`` or more, these inequalities would
# force more than all
# of the probability (their Algorithm 3): then f is refuted at level alpha. Nothing else is assumed.


def is_fdp_refuted(m: int, guesses: int, correct: int, curve: Curve, alpha: float) -> bool:
    """Whether f-DP for ``curve`` gives so many right guesses a chance below ``alpha``.

    curve: it must be its own inverse, as one that holds for both orders of a pair of neighbours is.
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
    """The largest parameter whose curve is refuted, 0 where none is. family: parameter >= 0
    (perfect privacy) -> curve."""
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
    return {
        name: max(bound(m, *c, delta=delta, confidence=each) for c in counts)
        for name, bound in methods.items()
    }


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
MAX_CANDIDATES = 200
# The limits that thresholds are compared at: wide enough that cells empty by luck win little.
COMPARISON_CONFIDENCE = 0.9
LARGEST_BOUND = 1e9
ConfusionCounts = tuple[
    np.ndarray, np.ndarray, np.ndarray, np.ndarray
]  # tp, fn, fp, tn of each threshold


@dataclass(frozen=True)
class Bound:
    """A lower bound: epsilon is at least ``value`` at ``delta`` with ``confidence``."""

    value: float
    method: str
    validity: Validity
    delta: float
    confidence: float


def check_scores(scores: Any, member: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores (n,) as float64 and their membership bits (n,) as bool. Raises ValueError for other
    shapes and NaN."""
    values = np.asarray(scores, dtype=np.float64)
    inside = np.asarray(member).astype(bool)
    if values.ndim != 1 or values.shape != inside.shape or np.isnan(values).any():
        raise ValueError(
            f"scores {values.shape}, member {inside.shape}: equally long, one-dimensional, no NaN"
        )
    return values, inside


def best_threshold(
    values: np.ndarray, inside: np.ndarray, delta: float, method: str = "clopper_pearson"
) -> float:
    """The threshold at which ``method`` would bound most on these trials, from scores (n,) and bits
    (n,); where it bounds nothing anywhere, the one with the largest gap between the rates. Raises
    KeyError for methods without threshold."""
    ordered = np.unique(values)
    candidates = ordered[np.unique(np.linspace(0, len(ordered) - 1, MAX_CANDIDATES).astype(int))]
    counts = confusion_counts_at(values, inside, candidates)
    gains = THRESHOLD_GAINS[method](counts, delta)
    if gains.max() > 0:
        return float(candidates[int(np.argmax(gains))])
    tp, fn, fp, tn = counts
    return float(candidates[int(np.argmax(tp / (tp + fn) - fp / (fp + tn)))])


def confusion_counts_at(
    values: np.ndarray, inside: np.ndarray, thresholds: np.ndarray
) -> ConfusionCounts:
    """(tp, fn, fp, tn) of the rules "value >= threshold means member", each (k,)."""
    members = np.sort(values[inside])
    others = np.sort(values[~inside])
    fn = np.searchsorted(members, thresholds)
    tn = np.searchsorted(others, thresholds)
    return len(members) - fn, fn, len(others) - tn, tn


def _clopper_pearson_gain(counts: ConfusionCounts, delta: float) -> np.ndarray:
    fpr, fnr = error_rate_limits(*counts, COMPARISON_CONFIDENCE)
    return _log_ratios(fpr, fnr, delta)


def _gaussian_gain(counts: ConfusionCounts, delta: float) -> np.ndarray:
    """mu, in which epsilon grows."""
    fpr, fnr = error_rate_limits(*counts, COMPARISON_CONFIDENCE)
    return ndtri(1 - fpr) - ndtri(fnr)


def _bayesian_gain(counts: ConfusionCounts, delta: float) -> np.ndarray:
    tp, fn, fp, tn = (count + 0.5 for count in counts)
    keep = 1 - (1 - COMPARISON_CONFIDENCE) / 2
    return _log_ratios(betaincinv(fp, tn, keep), betaincinv(fn, tp, keep), delta)


def _log_ratios(fpr: np.ndarray, fnr: np.ndarray, delta: float) -> np.ndarray:
    powers = np.stack([(1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr])
    return np.log(np.maximum(powers, 1e-300)).max(0)


THRESHOLD_GAINS: dict[str, Callable[[ConfusionCounts, float], np.ndarray]] = {
    "clopper_pearson": _clopper_pearson_gain,
    "gaussian": _gaussian_gain,
    "bayesian": _bayesian_gain,
}


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
    """Nasr et al. (2023): the error rates' upper limits give mu, mu-GDP gives epsilon at ``delta``.

    Holds only for mechanisms whose trade-off curve is at least Gaussian; needs 0 < delta < 1.
    """
    fpr, fnr = _error_limits(tp, fn, fp, tn, delta, confidence)
    if not delta > 0:
        raise ValueError(f"delta={delta}: a Gaussian mechanism has no finite epsilon at delta 0")
    return gaussian_epsilon(float(ndtri(1 - fpr) - ndtri(fnr)), delta)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of mu-GDP at ``delta`` (Dong, Roth and Su 2022, Corollary 2.13); 0 for mu <=
    0."""
    if not mu > 0:
        return 0.0

    def excess_delta(eps: float) -> float:
        return float(ndtr(-eps / mu + mu / 2) - np.exp(eps + log_ndtr(-eps / mu - mu / 2))) - delta

    if excess_delta(0.0) <= 0:
        return 0.0
    return float(
        brentq(
            excess_delta, 0.0, mu * mu / 2 + mu * (2 + math.sqrt(-2 * math.log(delta))), xtol=1e-10
        )
    )


def bayesian(
    tp: int, fn: int, fp: int, tn: int, *, delta: float, confidence: float = 0.95
) -> float:
    """Zanella-Beguelin et al. (2023): the epsilon whose DP region holds 1 - confidence of the
    posterior.

    Both rates have Jeffreys priors. The two-dimensional integral has a Beta distribution function
    inside, so one dimension is left (midpoint rule over 4096 quantiles of the FPR). At epsilon 0
    the region is a line of mass zero, so the value is above 0 even on a null.
    """
    check_confusion_counts(tp, fn, fp, tn)
    check_levels(delta, confidence)
    alpha = 1 - confidence
    x = betaincinv(0.5 + fp, 0.5 + tn, (np.arange(4096) + 0.5) / 4096)

    def excess_mass(eps: float) -> float:
        smallest_fnr = approximate_dp(eps, delta)
        low = smallest_fnr(x)
        high = 1 - smallest_fnr(1 - x)
        inside = betainc(0.5 + fn, 0.5 + tp, high) - betainc(0.5 + fn, 0.5 + tp, low)
        return float(np.clip(inside, 0, 1).mean()) - alpha

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
    return math.log(power / error) if power > 0 else 0.0


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
    """A bound from ``scores`` (n,) of independent trials, larger = member, and ``member`` (n,)
    bool.

    With ``thresholds``, fixed before the scores were seen: several share alpha (Bonferroni).
    Without, a random half of the trials (drawn by ``generator``) picks the threshold at which
    ``method`` bounds most and the rest evaluates it: choosing on the evaluated trials exceeds the
    truth on a null."""
    bounds = {"clopper_pearson": clopper_pearson, "gaussian": gaussian, "bayesian": bayesian}
    if method not in bounds:
        raise ValueError(f"method={method!r}: clopper_pearson, gaussian or bayesian")
    check_levels(delta, confidence)
    values, inside = check_scores(scores, member)
    if thresholds is None:
        values, inside, thresholds = _split_trials(values, inside, delta, generator, method)
    if not len(thresholds) >= 1:
        raise ValueError("thresholds: at least one is needed")
    each = shared_confidence(confidence, len(thresholds))
    counts = zip(
        *(
            c.tolist()
            for c in confusion_counts_at(values, inside, np.asarray(thresholds, dtype=np.float64))
        )
    )
    value = max(bounds[method](*four, delta=delta, confidence=each) for four in counts)
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
    """One-run bound from ``scores`` (m,) of one run whose ``member`` (m,) bits are independent fair
    coins.

    method: Steinke's bound, or the f-DP one for any mechanism or, an estimate, for Gaussian
        trade-offs. guesses: pairs (k_in, k_out) fixed beforehand: the k_in highest scores are
        guessed in, the k_lowest out; several pairs share
    alpha (Bonferroni). ``generator`` breaks ties, so that the order of the records cannot give
    their membership away."""
    if method not in ONE_RUN_BOUNDS:
        raise ValueError(f"method={method!r}: allowed are {', '.join(ONE_RUN_BOUNDS)}")
    each = shared_confidence(confidence, max(len(guesses), 1))
    counts = right_guesses(scores, member, guesses, generator)
    best = max(
        ONE_RUN_BOUNDS[method](len(scores), made, right, delta=delta, confidence=each)
        for made, right in counts
    )
    return Bound(best, method, VALIDITY[method], delta, confidence)


def right_guesses(
    scores: Any, member: Any, guesses: Sequence[tuple[int, int]], generator: np.random.Generator
) -> list[tuple[int, int]]:
    """(guesses made, guesses right) for each pair (k_in, k_out) of ``one_run_from_scores``.

    Raises ValueError for pairs that guess more than there is, and where there are none.
    """
    values, inside = check_scores(scores, member)
    if not guesses or any(min(pair) < 0 or sum(pair) > len(values) for pair in guesses):
        raise ValueError(
            f"guesses={guesses}: pairs (k_in, k_out) with k_in + k_out <= {len(values)} are needed"
        )
    ranked = inside[np.lexsort((generator.permutation(len(values)), -values))]
    return [
        (i + o, int(ranked[:i].sum()) + int((~ranked[len(ranked) - o :]).sum())) for i, o in guesses
    ]


ONE_RUN_BOUNDS: dict[str, Callable[..., float]] = {
    "one_run": one_run,
    "fdp_one_run": fdp_one_run,
    "fdp_one_run_gaussian": lambda *counts, delta, confidence: gaussian_epsilon(
        fdp_one_run_mu(*counts, confidence=confidence), delta
    ),
}


def _split_trials(
    values: np.ndarray,
    inside: np.ndarray,
    delta: float,
    generator: np.random.Generator | None,
    method: str,
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    if generator is None:
        raise ValueError("generator=None: one is needed to split the trials")
    chosen = np.zeros(len(values), dtype=bool)
    for side in (np.flatnonzero(inside), np.flatnonzero(~inside)):
        chosen[generator.permutation(side)[: int(len(side) * 0.5)]] = True
    if not all((part & kind).any() for part in (chosen, ~chosen) for kind in (inside, ~inside)):
        raise ValueError(f"{int(inside.sum())} members of {len(inside)} trials: too few to split")
    return (
        values[~chosen],
        inside[~chosen],
        [best_threshold(values[chosen], inside[chosen], delta, method)],
    )


# Bounds from a secret drawn among very many, with a null that is known exactly. A game with two
# hypotheses won n times out of n shows no epsilon above ln n. Where the record is drawn at random
# from many, and every one of them has the same neighbour D0 (the data without the record), one look
# shows more: P(named) = mean over s of P(M(D_s) in A_s) <= e^epsilon mean over s of P(M(D0) in A_s)
# + delta, and the last mean is the chance that a guess which knows nothing of s meets it, whatever
# the mechanism. For a direction s that is uniform on the
# sphere and a guess v: cos(v, s) has the law of one coordinate of the sphere, (1 + Beta((m-1)/2,
# (m-1)/2)) scaled to [-1, 1] (its square is Beta(1/2, (m-1)/2)).


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
        # x^a / (a B(a, 1/2)) (1 - x)^(-1/2): the integral of t^(a-1) (1-t)^(-1/2) up to x is below
        # this
        room = np.log(np.maximum(1 - c * c, 1e-300)) * a - math.log(a) - betaln(a, 0.5)
        far = room - 0.5 * np.log(np.maximum(c * c, 1e-300)) + math.log(0.5)
    return np.where((c > 0) & (tail < 1e-250), np.minimum(far, math.log(1e-250)), plain)


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
    return _bound_from_wins(
        won,
        len(values),
        float(log_chance_of_cosine(np.array(threshold), dimensions)),
        delta,
        confidence,
    )


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
    """The threshold that bounds most on these games, to be used on others: one that a tenth of them
    reach at least."""
    ordered = np.sort(np.asarray(cosines, dtype=np.float64))
    n = len(ordered)
    at = np.unique(np.linspace(0, max(0, n - max(5, n // 10)), 60).astype(int))
    won = n - at
    share = lower_limit(won, n, 0.05)
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = np.log(np.maximum(share - delta, 1e-300)) - log_chance_of_cosine(
            ordered[at], dimensions
        )
    return float(ordered[at][int(np.argmax(gains))])

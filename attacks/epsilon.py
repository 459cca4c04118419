"""Lower bounds on epsilon from the error rates of an attack, each with the condition it needs.

The two rates are given, or follow from scores whose threshold is chosen on other trials. Bounds
from many canaries in a single run are in ``attacks.one_run``, from a record that is identified
among very many in ``attacks.identification``. Imports no torch.

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, ndtri

from attacks.statistics import check_confusion_counts, check_levels, shared_confidence
from attacks.tradeoff import approximate_dp, error_rate_limits, gaussian_epsilon

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
MAX_CANDIDATES = 200  # thresholds that are compared
# The limits that thresholds are compared at: wide enough that cells empty by luck win little.
COMPARISON_CONFIDENCE = 0.9
POSTERIOR_POINTS = 4096  # midpoints of the quantiles of the FPR's posterior


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
            f"scores {values.shape}, member {is_member.shape}: must be equally long, "
            "one-dimensional and free of NaN"
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
    gains = _threshold_gains(method, counts, delta)
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


def _threshold_gains(method: str, counts: ConfusionCounts, delta: float) -> np.ndarray:
    """What ``method`` bounds at each threshold, (k,). Raises KeyError."""
    match method:
        case "clopper_pearson":
            return _clopper_pearson_gain(counts, delta)
        case "gaussian":
            return _gaussian_gain(counts)
        case "bayesian":
            return _bayesian_gain(counts, delta)
    raise KeyError(method)


def _clopper_pearson_gain(counts: ConfusionCounts, delta: float) -> np.ndarray:
    fpr, fnr = error_rate_limits(*counts, COMPARISON_CONFIDENCE)
    return _log_ratios(fpr, fnr, delta)


def _gaussian_gain(counts: ConfusionCounts) -> np.ndarray:
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
        raise ValueError(f"method={method!r}: must be clopper_pearson, gaussian or bayesian")
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

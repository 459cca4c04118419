"""Lower bounds on epsilon from what an attack got right, each with the condition it needs (``attacks.bounds``).

Bounds from a single run are in ``attacks.one_run`` and ``attacks.fdp_one_run``, tests of a whole trade-off curve in
``attacks.curve``; their names are importable from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, log_ndtr, ndtr, ndtri

from attacks.bounds import VALIDITY, Bound, Validity, check_counts, check_levels, check_scores
from attacks.curve import upper_rates
from attacks.fdp_one_run import fdp_one_run, fdp_one_run_mu
from attacks.one_run import one_run, one_run_p_value
from attacks.thresholds import best_threshold, counts_at

__all__ = [
    "VALIDITY", "Bound", "Validity", "bayesian", "best_threshold", "clopper_pearson", "fdp_one_run", "fdp_one_run_mu",
    "from_scores", "gaussian", "gaussian_epsilon", "one_run", "one_run_from_scores", "one_run_p_value", "right_guesses",
]  # fmt: skip


def clopper_pearson(tp: int, fn: int, fp: int, tn: int, *, delta: float, confidence: float = 0.95) -> float:
    """Lower bound from two error rates (Jagielski et al. 2020; Nasr et al. 2021), natural logarithm.

    Each rate's upper limit takes half of alpha, so both directions hold at once. Needs independent
    trials (one training each) and a threshold that does not depend on them.
    """
    fpr, fnr = _limits(tp, fn, fp, tn, delta, confidence)
    return max(_log_ratio(1 - delta - fnr, fpr), _log_ratio(1 - delta - fpr, fnr), 0.0)


def gaussian(tp: int, fn: int, fp: int, tn: int, *, delta: float, confidence: float = 0.95) -> float:
    """Nasr et al. (2023): the error rates' upper limits give mu, mu-GDP gives epsilon at ``delta``.

    Holds only for mechanisms whose trade-off curve is at least Gaussian; needs 0 < delta < 1.
    """
    fpr, fnr = _limits(tp, fn, fp, tn, delta, confidence)
    if not delta > 0:
        raise ValueError(f"delta={delta}: a Gaussian mechanism has no finite epsilon at delta 0")
    return gaussian_epsilon(float(ndtri(1 - fpr) - ndtri(fnr)), delta)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of mu-GDP at ``delta`` (Dong, Roth and Su 2022, Corollary 2.13); 0 for mu <= 0."""
    if not mu > 0:
        return 0.0

    def excess(eps: float) -> float:
        return float(ndtr(-eps / mu + mu / 2) - np.exp(eps + log_ndtr(-eps / mu - mu / 2))) - delta

    if excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, mu * mu / 2 + mu * (2 + math.sqrt(-2 * math.log(delta))), xtol=1e-10))


def bayesian(tp: int, fn: int, fp: int, tn: int, *, delta: float, confidence: float = 0.95) -> float:
    """Zanella-Beguelin et al. (2023): the epsilon whose DP region holds 1 - confidence of the posterior.

    Both rates have Jeffreys priors. The two-dimensional integral has a Beta distribution function
    inside, so one dimension is left (midpoint rule over 4096 quantiles of the FPR). A credible
    bound: at epsilon 0 the region is a line of mass zero, so the value is above 0 even on a null.
    """
    check_counts(tp, fn, fp, tn)
    check_levels(delta, confidence)
    alpha = 1 - confidence
    x = betaincinv(0.5 + fp, 0.5 + tn, (np.arange(4096) + 0.5) / 4096)

    def excess(eps: float) -> float:
        low, high = _region(x, eps, delta), 1 - _region(1 - x, eps, delta)
        inside = betainc(0.5 + fn, 0.5 + tp, high) - betainc(0.5 + fn, 0.5 + tp, low)
        return float(np.clip(inside, 0, 1).mean()) - alpha

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-6))


def _region(x: np.ndarray, eps: float, delta: float) -> np.ndarray:
    """The smallest FNR that (eps, delta)-DP allows at FPR x."""
    return np.maximum(0.0, np.maximum(1 - delta - np.exp(eps) * x, np.exp(-eps) * (1 - delta - x)))


def _limits(tp: int, fn: int, fp: int, tn: int, delta: float, confidence: float) -> tuple[float, float]:
    """Simultaneous upper limits (FPR, FNR) at ``confidence``."""
    check_counts(tp, fn, fp, tn)
    check_levels(delta, confidence)
    fpr, fnr = upper_rates(tp, fn, fp, tn, confidence)
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
    split: float = 0.5,
    generator: np.random.Generator | None = None,
) -> Bound:
    """A bound from ``scores`` (n,) of independent trials, larger = member, and ``member`` (n,) bool.

    With ``thresholds``, fixed before the scores were seen: one is used as it is; several share alpha
    (Bonferroni). Without, a random share ``split`` of the trials (drawn by ``generator``) picks the
    threshold at which ``method`` bounds most and the rest evaluates it. Choosing on the evaluated trials
    is not offered: it exceeds the truth on a null.
    """
    bounds = {"clopper_pearson": clopper_pearson, "gaussian": gaussian, "bayesian": bayesian}
    if method not in bounds:
        raise ValueError(f"method={method!r}: clopper_pearson, gaussian or bayesian")
    check_levels(delta, confidence)
    values, inside = check_scores(scores, member)
    if thresholds is None:
        values, inside, thresholds = _split(values, inside, delta, split, generator, method)
    if not len(thresholds) >= 1:
        raise ValueError("thresholds: at least one is needed")
    each = 1 - (1 - confidence) / len(thresholds)
    counts = zip(*(c.tolist() for c in counts_at(values, inside, np.asarray(thresholds, dtype=np.float64))))
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
    """One-run bound from ``scores`` (m,) of one run whose ``member`` (m,) bits are independent fair coins.

    method: Steinke's bound, or the f-DP one for any mechanism or, an estimate, for Gaussian trade-offs. guesses: pairs (k_in, k_out) fixed beforehand: the k_in highest scores are guessed in, the k_out
    lowest out; several pairs share alpha (Bonferroni). ``generator`` breaks ties, so that the order
    of the records cannot give their membership away.
    """
    if method not in ONE_RUN:
        raise ValueError(f"method={method!r}: allowed are {', '.join(ONE_RUN)}")
    each = 1 - (1 - confidence) / max(len(guesses), 1)
    counts = right_guesses(scores, member, guesses, generator)
    best = max(ONE_RUN[method](len(scores), made, right, delta=delta, confidence=each) for made, right in counts)
    return Bound(best, method, VALIDITY[method], delta, confidence)


def right_guesses(
    scores: Any, member: Any, guesses: Sequence[tuple[int, int]], generator: np.random.Generator
) -> list[tuple[int, int]]:
    """(guesses made, guesses right) for each pair (k_in, k_out) of ``one_run_from_scores``.

    Raises ValueError for pairs that guess more than there is, and where there are none.
    """
    values, inside = check_scores(scores, member)
    if not guesses or any(min(pair) < 0 or sum(pair) > len(values) for pair in guesses):
        raise ValueError(f"guesses={guesses}: pairs (k_in, k_out) with k_in + k_out <= {len(values)} are needed")
    ranked = inside[np.lexsort((generator.permutation(len(values)), -values))]
    return [(i + o, int(ranked[:i].sum()) + int((~ranked[len(ranked) - o :]).sum())) for i, o in guesses]


def _fdp_gaussian(m: int, guesses: int, correct: int, *, delta: float, confidence: float) -> float:
    return gaussian_epsilon(fdp_one_run_mu(m, guesses, correct, confidence=confidence), delta)


ONE_RUN: dict[str, Callable[..., float]] = {
    "one_run": one_run,
    "fdp_one_run": fdp_one_run,
    "fdp_one_run_gaussian": _fdp_gaussian,
}


def _split(
    values: np.ndarray,
    inside: np.ndarray,
    delta: float,
    share: float,
    generator: np.random.Generator | None,
    method: str,
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    if generator is None or not 0 < share < 1:
        raise ValueError(f"split={share}, generator={generator}: a share in (0, 1) and a generator are needed")
    chosen = np.zeros(len(values), dtype=bool)
    for side in (np.flatnonzero(inside), np.flatnonzero(~inside)):
        chosen[generator.permutation(side)[: int(len(side) * share)]] = True
    if not all((part & kind).any() for part in (chosen, ~chosen) for kind in (inside, ~inside)):
        raise ValueError(f"{int(inside.sum())} members of {len(inside)} trials: too few to split")
    return values[~chosen], inside[~chosen], [best_threshold(values[chosen], inside[chosen], delta, method)]

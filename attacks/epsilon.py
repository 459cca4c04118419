"""Lower bounds on epsilon from what an attack got right, each with the condition it needs.

``finite_sample`` bounds hold at the stated confidence for any mechanism and any sample size;
``gaussian_only`` ones also need a trade-off curve no worse than a Gaussian's, so they never decide
a verdict alone; ``credible`` ones are Bayesian and say nothing about coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, log_ndtr, ndtr, ndtri
from scipy.stats import binom

Validity = Literal["finite_sample", "gaussian_only", "credible"]
VALIDITY: dict[str, Validity] = {
    "clopper_pearson": "finite_sample",
    "one_run": "finite_sample",
    "gaussian": "gaussian_only",
    "bayesian": "credible",
}


@dataclass(frozen=True)
class Bound:
    """A lower bound: epsilon is at least ``value`` at ``delta`` with ``confidence``."""

    value: float
    method: str
    validity: Validity
    delta: float
    confidence: float


def clopper_pearson(tp: int, fn: int, fp: int, tn: int, *, delta: float, confidence: float = 0.95) -> float:
    """Lower bound from two error rates (Jagielski et al. 2020; Nasr et al. 2021), natural logarithm.

    Each rate's upper limit takes half of alpha, so both directions hold at once. Needs independent
    trials (one training each) and a threshold that does not depend on them.
    """
    fnr, fpr = _upper_rates(tp, fn, fp, tn, delta, confidence)
    return max(_log_ratio(1 - delta - fnr, fpr), _log_ratio(1 - delta - fpr, fnr), 0.0)


def gaussian(tp: int, fn: int, fp: int, tn: int, *, delta: float, confidence: float = 0.95) -> float:
    """Nasr et al. (2023): the error rates' upper limits give mu, mu-GDP gives epsilon at ``delta``.

    Holds only for mechanisms whose trade-off curve is at least Gaussian; needs 0 < delta < 1.
    """
    fnr, fpr = _upper_rates(tp, fn, fp, tn, delta, confidence)
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


def one_run(m: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95) -> float:
    """Steinke, Nasr and Jagielski (2023), Theorem 5.2: a bound from a single run.

    m: records that were each in or out by an independent fair coin; guesses: how many the attack
    guessed, a number fixed beforehand; correct: how many of these are right.
    """
    if not 0 <= correct <= guesses <= m or not m >= 1:
        raise ValueError(f"m={m}, guesses={guesses}, correct={correct}: 0 <= correct <= guesses <= m is needed")
    _check(delta, confidence)
    alpha = 1 - confidence
    if guesses == 0 or one_run_p_value(m, guesses, correct, 0.0, delta) > alpha:
        return 0.0
    high = 1.0
    while one_run_p_value(m, guesses, correct, high, delta) <= alpha:
        high += 1.0
    low = high - 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if one_run_p_value(m, guesses, correct, middle, delta) <= alpha:
            low = middle
        else:
            high = middle
    return low


def one_run_p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """P[at least ``correct`` right guesses] under any (epsilon, delta)-DP mechanism, at most."""
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, rate))
    if delta == 0 or correct == 0:
        return min(tail, 1.0)
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, rate))
    return min(tail + 2 * m * delta * float(np.max(below / np.arange(1, correct + 1))), 1.0)


def bayesian(tp: int, fn: int, fp: int, tn: int, *, delta: float, confidence: float = 0.95) -> float:
    """Zanella-Beguelin et al. (2023): the epsilon whose DP region holds 1 - confidence of the posterior.

    Both rates have Jeffreys priors. The two-dimensional integral has a Beta distribution function
    inside, so one dimension is left (midpoint rule over 4096 quantiles of the FPR). A credible
    bound: at epsilon 0 the region is a line of mass zero, so the value is above 0 even on a null.
    """
    _check_counts(tp, fn, fp, tn)
    _check(delta, confidence)
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


def _upper_rates(tp: int, fn: int, fp: int, tn: int, delta: float, confidence: float) -> tuple[float, float]:
    """Simultaneous upper limits (FNR, FPR) at ``confidence``."""
    _check_counts(tp, fn, fp, tn)
    _check(delta, confidence)
    keep = 1 - (1 - confidence) / 2
    fnr = float(betaincinv(fn + 1, tp, keep)) if tp > 0 else 1.0
    fpr = float(betaincinv(fp + 1, tn, keep)) if tn > 0 else 1.0
    return fnr, fpr


def _log_ratio(power: float, error: float) -> float:
    return math.log(power / error) if power > 0 else 0.0


def _check_counts(tp: int, fn: int, fp: int, tn: int) -> None:
    counts = {"tp": tp, "fn": fn, "fp": fp, "tn": tn}
    for name, value in counts.items():
        if not value >= 0 or value != int(value):
            raise ValueError(f"{name}={value}: a whole number of at least 0 is needed")
    if tp + fn == 0 or fp + tn == 0:
        raise ValueError(f"{counts}: at least one member and one non-member are needed")


def _check(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: a number in [0, 1) is needed")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: a number in (0, 1) is needed")


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
    threshold with the best point ratio and the rest evaluates it. Choosing on the evaluated trials
    is not offered: it exceeds the truth on a null.
    """
    if method not in VALIDITY or method == "one_run":
        raise ValueError(f"method={method!r}: clopper_pearson, gaussian or bayesian")
    _check(delta, confidence)
    values, inside = np.asarray(scores, dtype=np.float64), np.asarray(member).astype(bool)
    if values.ndim != 1 or values.shape != inside.shape or np.isnan(values).any():
        raise ValueError(f"scores {values.shape}, member {inside.shape}: equally long, one-dimensional, no NaN")
    if thresholds is None:
        values, inside, thresholds = _split(values, inside, delta, split, generator)
    if not len(thresholds) >= 1:
        raise ValueError("thresholds: at least one is needed")
    bound = {"clopper_pearson": clopper_pearson, "gaussian": gaussian, "bayesian": bayesian}[method]
    each = 1 - (1 - confidence) / len(thresholds)
    value = max(bound(*_counts(values, inside, at), delta=delta, confidence=each) for at in thresholds)
    return Bound(value, method, VALIDITY[method], delta, confidence)


def one_run_from_scores(
    scores: Any,
    member: Any,
    *,
    delta: float,
    generator: np.random.Generator,
    guesses: Sequence[tuple[int, int]],
    confidence: float = 0.95,
) -> Bound:
    """One-run bound from ``scores`` (m,) of one run whose ``member`` (m,) bits are independent fair coins.

    guesses: pairs (k_in, k_out) fixed beforehand: the k_in highest scores are guessed in, the k_out
    lowest out; several pairs share alpha (Bonferroni). ``generator`` breaks ties, so that the order
    of the records cannot give their membership away.
    """
    values, inside = np.asarray(scores, dtype=np.float64), np.asarray(member).astype(bool)
    if values.ndim != 1 or values.shape != inside.shape or np.isnan(values).any():
        raise ValueError(f"scores {values.shape}, member {inside.shape}: equally long, one-dimensional, no NaN")
    if not guesses or any(min(pair) < 0 or sum(pair) > len(values) for pair in guesses):
        raise ValueError(f"guesses={guesses}: pairs (k_in, k_out) with k_in + k_out <= {len(values)} are needed")
    ranked = inside[np.lexsort((generator.permutation(len(values)), -values))]
    each = 1 - (1 - confidence) / len(guesses)
    best = 0.0
    for k_in, k_out in guesses:
        right = int(ranked[:k_in].sum()) + int((~ranked[len(ranked) - k_out :]).sum())
        best = max(best, one_run(len(ranked), k_in + k_out, right, delta=delta, confidence=each))
    return Bound(best, "one_run", "finite_sample", delta, confidence)


def best_threshold(values: np.ndarray, inside: np.ndarray, delta: float) -> float:
    """The threshold with the largest Clopper-Pearson point on these trials (to be judged on others)."""
    ordered = np.unique(values)
    candidates = ordered[np.unique(np.linspace(0, len(ordered) - 1, 200).astype(int))]
    # 50 % limits: they rank thresholds without favouring cells that are empty by luck
    bounds = [clopper_pearson(*_counts(values, inside, at), delta=delta, confidence=0.5) for at in candidates]
    if max(bounds) > 0:
        return float(candidates[int(np.argmax(bounds))])
    gaps = [(values[inside] >= at).mean() - (values[~inside] >= at).mean() for at in candidates]
    return float(candidates[int(np.argmax(gaps))])


def _split(
    values: np.ndarray, inside: np.ndarray, delta: float, share: float, generator: np.random.Generator | None
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    if generator is None or not 0 < share < 1:
        raise ValueError(f"split={share}, generator={generator}: a share in (0, 1) and a generator are needed")
    chosen = np.zeros(len(values), dtype=bool)
    for side in (np.flatnonzero(inside), np.flatnonzero(~inside)):
        chosen[generator.permutation(side)[: int(len(side) * share)]] = True
    if not all((part & kind).any() for part in (chosen, ~chosen) for kind in (inside, ~inside)):
        raise ValueError(f"{int(inside.sum())} members of {len(inside)} trials: too few to split")
    return values[~chosen], inside[~chosen], [best_threshold(values[chosen], inside[chosen], delta)]


def _counts(values: np.ndarray, inside: np.ndarray, at: float) -> tuple[int, int, int, int]:
    """(tp, fn, fp, tn) of the rule "value >= at means member"."""
    tp, fp = int((values[inside] >= at).sum()), int((values[~inside] >= at).sum())
    return tp, int(inside.sum()) - tp, fp, int((~inside).sum()) - fp

"""Rates and their limits, shares of an error probability, and the checks of what they are computed
from. Imports no torch.

The limits of a rate are Clopper and Pearson's (1934), at any number of trials. Counts may be
arrays, and fractions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import betaincinv


def lower_limit(successes: Any, trials: Any, error: float) -> Any:
    """What the rate is below with a chance of at most ``error``; 0 without successes.

    Clopper and Pearson (1934): P[Binomial(n, p) >= k] = I_p(k, n - k + 1), so the limit is the p at
    which that is ``error``, BetaInv(error; k, n - k + 1).
    """
    counts = np.asarray(successes, dtype=np.float64)
    limits = betaincinv(np.where(counts > 0, counts, 1), trials - counts + 1, error)
    if counts.ndim:
        return np.where(counts > 0, limits, 0.0)
    if successes > 0:
        return float(limits)
    return 0.0


def upper_limit(successes: Any, trials: Any, error: float) -> Any:
    """What the rate is above with a chance of at most ``error``; 1 without failures.

    Clopper and Pearson (1934): P[Binomial(n, p) <= k] = 1 - I_p(k + 1, n - k), so the limit is
    BetaInv(1 - error; k + 1, n - k).
    """
    counts = np.asarray(successes, dtype=np.float64)
    failures = trials - counts
    limits = betaincinv(counts + 1, np.where(failures > 0, failures, 1), 1 - error)
    if counts.ndim:
        return np.where(failures > 0, limits, 1.0)
    if failures > 0:
        return float(limits)
    return 1.0


def binomial_interval(
    successes: float, trials: float, confidence: float = 0.95
) -> tuple[float, float]:
    """The two-sided interval of a rate; (0, 1) without trials."""
    if not 0 < confidence < 1 or not 0 <= successes <= trials * (1 + 1e-12):
        raise ValueError(
            f"successes={successes}, trials={trials}, confidence={confidence}: not a binomial count"
        )
    half = (1 - confidence) / 2
    return lower_limit(min(successes, trials), trials, half), upper_limit(successes, trials, half)


def chance_of_at_least(successes: Any, trials: Any, rate: Any) -> Any:
    """P(at least so many of independent trials of this rate)."""
    return stats.binom.sf(np.asarray(successes) - 1, trials, rate)


def chance_of_at_most(successes: Any, trials: Any, rate: Any) -> Any:
    """P(at most so many of independent trials of this rate)."""
    return stats.binom.cdf(successes, trials, rate)


def chance_of_exactly(successes: Any, trials: Any, rate: Any) -> Any:
    """P(so many of independent trials of this rate)."""
    return stats.binom.pmf(successes, trials, rate)


def binomial_p_value(successes: int, trials: int, rate: float) -> float:
    """The two-sided p-value of a count: the chance, at this rate, of one no likelier than it."""
    # sum of P[X = x] over all x with P[X = x] <= P[X = k], X ~ Binomial(n, rate)
    return float(stats.binomtest(successes, trials, rate).pvalue)


def shared_confidence(confidence: float, tests: int) -> float:
    """The confidence of each of so many tests, all of which hold together at ``confidence``
    (Bonferroni)."""
    return 1 - (1 - confidence) / tests


def largest_refuted(
    refuted: Callable[[float], bool], *, steps: int = 40, limit: float = 1e4
) -> float:
    """The largest value, rounded downwards and up to ``limit``, that a test refutes; 0 if it does
    not refute 0.

    refuted: value -> bool, true below some point and false above it.
    """
    if not refuted(0.0):
        return 0.0
    low = 0.0
    high = 1.0
    while refuted(high):
        low = high
        high = 2 * high
        if low >= limit:
            return low
    return bisect_refuted(refuted, low, high, steps)


def bisect_refuted(refuted: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """The lower end, after so many halvings, of the interval in which a test that refutes ``low``
    ceases to refute."""
    for _ in range(steps):
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low


def check_levels(delta: float, confidence: float) -> None:
    """Raises ValueError outside 0 <= delta < 1 and 0 < confidence < 1."""
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: a number in [0, 1) is needed")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: a number in (0, 1) is needed")


def check_confusion_counts(tp: int, fn: int, fp: int, tn: int) -> None:
    """Raises ValueError for anything but whole numbers with a member and a non-member among
    them."""
    counts = {"tp": tp, "fn": fn, "fp": fp, "tn": tn}
    for name, value in counts.items():
        if not value >= 0 or value != int(value):
            raise ValueError(f"{name}={value}: a whole number of at least 0 is needed")
    if tp + fn == 0 or fp + tn == 0:
        raise ValueError(f"{counts}: at least one member and one non-member are needed")

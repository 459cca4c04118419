"""Choosing a threshold on some trials, to be judged on others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import betaincinv, ndtri

from attacks.curve import upper_rates

CANDIDATES = 200
LEVEL = 0.9  # the limits that thresholds are compared at: wide enough that cells empty by luck win little
Counts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # tp, fn, fp, tn of each threshold


def best_threshold(values: np.ndarray, inside: np.ndarray, delta: float, method: str = "clopper_pearson") -> float:
    """The threshold at which ``method`` would bound most on these trials, from scores (n,) and bits (n,).

    Where it bounds nothing anywhere, the threshold with the largest gap between the rates. Raises KeyError for methods
    that need no threshold.
    """
    ordered = np.unique(values)
    candidates = ordered[np.unique(np.linspace(0, len(ordered) - 1, CANDIDATES).astype(int))]
    counts = counts_at(values, inside, candidates)
    gains = RANKS[method](counts, delta)
    if gains.max() > 0:
        return float(candidates[int(np.argmax(gains))])
    tp, fn, fp, tn = counts
    return float(candidates[int(np.argmax(tp / (tp + fn) - fp / (fp + tn)))])


def counts_at(values: np.ndarray, inside: np.ndarray, thresholds: np.ndarray) -> Counts:
    """(tp, fn, fp, tn) of the rules "value >= threshold means member", each (k,)."""
    members, others = np.sort(values[inside]), np.sort(values[~inside])
    fn, tn = np.searchsorted(members, thresholds), np.searchsorted(others, thresholds)
    return len(members) - fn, fn, len(others) - tn, tn


def _clopper_pearson(counts: Counts, delta: float) -> np.ndarray:
    fpr, fnr = upper_rates(*counts, LEVEL)
    return _log_ratios(fpr, fnr, delta)


def _gaussian(counts: Counts, delta: float) -> np.ndarray:
    """mu, in which epsilon grows."""
    fpr, fnr = upper_rates(*counts, LEVEL)
    return ndtri(1 - fpr) - ndtri(fnr)


def _bayesian(counts: Counts, delta: float) -> np.ndarray:
    tp, fn, fp, tn = (count + 0.5 for count in counts)
    keep = 1 - (1 - LEVEL) / 2
    return _log_ratios(betaincinv(fp, tn, keep), betaincinv(fn, tp, keep), delta)


def _log_ratios(fpr: np.ndarray, fnr: np.ndarray, delta: float) -> np.ndarray:
    powers = np.stack([(1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr])
    return np.log(np.maximum(powers, 1e-300)).max(0)


RANKS: dict[str, Callable[[Counts, float], np.ndarray]] = {
    "clopper_pearson": _clopper_pearson,
    "gaussian": _gaussian,
    "bayesian": _bayesian,
}

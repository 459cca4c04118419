"""What a lower bound on epsilon is, and under which condition it holds.

``finite_sample`` bounds hold at the stated confidence for any mechanism and any sample size. ``curve``: the accountant's
whole trade-off curve is refuted wherever the value is above what it states, at the stated confidence and for any
sample size; the value itself is read off a curve of the same family, so it is no bound at delta. ``gaussian_only``
ones also need a trade-off curve no worse than a Gaussian's, so they never decide a verdict alone; ``credible`` ones
are Bayesian and say nothing about coverage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

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


@dataclass(frozen=True)
class Bound:
    """A lower bound: epsilon is at least ``value`` at ``delta`` with ``confidence``."""

    value: float
    method: str
    validity: Validity
    delta: float
    confidence: float


def check_levels(delta: float, confidence: float) -> None:
    """Raises ValueError outside 0 <= delta < 1 and 0 < confidence < 1."""
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: a number in [0, 1) is needed")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: a number in (0, 1) is needed")


def check_confusion_counts(tp: int, fn: int, fp: int, tn: int) -> None:
    """Raises ValueError for anything but whole numbers with a member and a non-member among them."""
    counts = {"tp": tp, "fn": fn, "fp": fp, "tn": tn}
    for name, value in counts.items():
        if not value >= 0 or value != int(value):
            raise ValueError(f"{name}={value}: a whole number of at least 0 is needed")
    if tp + fn == 0 or fp + tn == 0:
        raise ValueError(f"{counts}: at least one member and one non-member are needed")


def check_scores(scores: Any, member: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores (n,) as float64 and their membership bits (n,) as bool. Raises ValueError for other shapes and NaN."""
    values, inside = np.asarray(scores, dtype=np.float64), np.asarray(member).astype(bool)
    if values.ndim != 1 or values.shape != inside.shape or np.isnan(values).any():
        raise ValueError(f"scores {values.shape}, member {inside.shape}: equally long, one-dimensional, no NaN")
    return values, inside


def largest_refuted(refuted: Callable[[float], bool], *, steps: int = 40, limit: float = 1e4) -> float:
    """The largest value, up to rounding downwards, that a test refutes; 0 where it does not refute 0.

    refuted: value -> bool, true below some point and false above it; values above ``limit`` are not tried.
    """
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if low >= limit:
            return low
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low

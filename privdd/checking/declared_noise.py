"""Noise as declared: its law and its scale, where the statement names them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from privdd.checking.called import BlackBox, Refused
from privdd.checking.constant_parts import scaled
from privdd.checking.looks import Looked
from privdd.checking.neighbours import Tried
from privdd.checking.sampled import Clock, drawn
from privdd.checking.shift_law import noise_law
from privdd.checking.stated import Stated

CALLS = 1500
ROUNDING = 0.98  # of the declared scale: what a printed number may be off by


def declared(
    mechanism: BlackBox, stated: Stated, tried: Tried, clock: Clock, confidence: Callable[[], float]
) -> list[Looked]:
    """Rows for the law and the scale of each number's noise; none where nothing is declared.

    confidence: -> that of the next test. The law is rejected at ``shift_law.NOT_REJECTED``, one share of the error
    probability at confidence 0.99.
    """
    if stated.noise is None and stated.noise_std is None:
        return []
    try:
        block = drawn(mechanism, [scaled(mechanism.kind, tried, 1.0)], CALLS, clock)
    except Refused:
        return []
    values = block.rows[:, 0]
    residuals = values - values.mean(0)
    found, law = [], noise_law(residuals)
    if stated.noise is not None:
        confidence()  # the law's test takes its share too
        outcome = "not refuted" if law == stated.noise else "refuted"
        says = f"noise of the {stated.noise} law is declared, and its law is {law}"
        found.append(Looked("law of the noise", outcome, says, strength="finite_sample"))
    if stated.noise_std is not None:
        std = residuals.std(0, ddof=1)
        least = int(np.argmin(std))
        width = math.sqrt(_fourth(stated.noise or law, residuals) - 1.0)  # of a sum of squares
        tail = stats.norm.isf((1 - confidence()) / len(std))
        highest = float(std[least]) ** 2 * (1 + tail * width / math.sqrt(CALLS))
        outcome = "refuted" if highest < (ROUNDING * stated.noise_std) ** 2 else "not refuted"
        says = f"the noise of number {least} has standard deviation {std[least]:.4g}; {stated.noise_std:g} is declared"
        found.append(Looked("scale of the noise", outcome, says, strength="finite_sample"))
    return found


def _fourth(law: str, residuals: np.ndarray) -> float:
    """The fourth moment of noise of this law, at deviation 1; of another law twice that of all residuals (n, m), which have
    seen little of a heavy tail."""
    known = {"gaussian": 3.0, "laplace": 6.0}
    if law in known:
        return known[law]
    std = residuals.std(0)
    kept = std > 0
    return 2 * float(np.mean((residuals[:, kept] / std[kept]) ** 4)) if kept.any() else known["gaussian"]

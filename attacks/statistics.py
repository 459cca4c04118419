"""Rates and their limits, shares of an error probability, and the checks of what they are computed
from. Imports no torch.

The limits of a rate are Clopper and Pearson's (1934), at any number of trials. Counts may be
arrays, and fractions.

Low bits: does rounding tell a noised value from noise alone? (Mironov 2012; Jin et al. 2022;
    Holohan and Braghin 2021)

``x + std * noise`` in floating point keeps the grid of ``x`` where noise cancels most of it, and
``0 + std * noise`` does not. A release is free of this only if its numbers are multiples of one
public step, whatever the clean value: then what an observer sees is a function of the ideal noised
    value. This module finds that step, or the numbers that have none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from scipy.special import betaincinv
from torch import Tensor

from attacks.tensors import accepts_numpy


def lower_limit(successes: Any, trials: Any, error: float) -> Any:
    """What the rate is below with a chance of at most ``error``; 0 without successes."""
    counts = np.asarray(successes, dtype=np.float64)
    found = betaincinv(np.where(counts > 0, counts, 1), trials - counts + 1, error)
    return (
        np.where(counts > 0, found, 0.0) if counts.ndim else float(found) if successes > 0 else 0.0
    )


def upper_limit(successes: Any, trials: Any, error: float) -> Any:
    """What the rate is above with a chance of at most ``error``; 1 without failures."""
    counts = np.asarray(successes, dtype=np.float64)
    failures = trials - counts
    found = betaincinv(counts + 1, np.where(failures > 0, failures, 1), 1 - error)
    return (
        np.where(failures > 0, found, 1.0) if counts.ndim else float(found) if failures > 0 else 1.0
    )


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
    """Two-sided: of a count so unlikely, or more so, at this rate."""
    return float(stats.binomtest(successes, trials, rate).pvalue)


def shared_confidence(confidence: float, tests: int) -> float:
    """The confidence of each of so many tests, all of which hold together at ``confidence``
    (Bonferroni)."""
    return 1 - (1 - confidence) / tests


def largest_refuted(
    refuted: Callable[[float], bool], *, steps: int = 40, limit: float = 1e4
) -> float:
    """The largest value, up to rounding downwards and to ``limit``, that a test refutes; 0 where it
    does not refute 0.

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
        low, high = (middle, high) if refuted(middle) else (low, middle)
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


# times std: numbers further from zero are multiples of a coarse step by their float format alone
MAX_NOISE_SCALES = 8.0
NO_BIT = 2000.0  # above that of any number
# times std: the finest step that the format of a float32 number within NEAR would not give by
# itself
FINEST_STEP = 2.0**-18


@dataclass(frozen=True)
class LowBits:
    """judged: numbers within ``MAX_NOISE_SCALES`` noise scales of zero; off: how many of all
    numbers are off the lattice: above 0, low bits can tell clean values apart.

    step: the lattice they were tested for; where none was given, the largest power of two, at least
    ``FINEST_STEP`` times the noise scale, that divides every judged number (0 = there is none).
    """

    judged: int
    off: int
    step: float


@accepts_numpy
def lowest_set_bits(values: Tensor) -> Tensor:
    """log2 of the lowest set bit of each number, as float64; ``NO_BIT`` for 0, which has none."""
    mantissa, exponent = values.double().frexp()
    whole = (mantissa * 2.0**53).abs().long()
    return torch.where(whole > 0, (whole & -whole).double().log2() + exponent - 53, NO_BIT)


@accepts_numpy
def is_off_lattice(values: Tensor, step: float) -> Tensor:
    """Which numbers are not multiples of ``step`` (exact, in float64); NaN and infinities are off
    it."""
    if not (math.isfinite(step) and step > 0):
        raise ValueError(f"step={step!r}: a finite number above 0 is needed")
    quotient = values.double() / step
    return ~(quotient == quotient.round()) | ~quotient.isfinite()


@accepts_numpy
def examine_low_bits(released: Tensor, std: float, step: float | None = None) -> LowBits:
    """Judge one release, or many of one mechanism joined together.

    released: any shape; std: scale of its noise; step: the lattice that the mechanism declares
        (None: one is looked for). Releases of several clean values, zero among them, show more than
        one: where the clean value is large, its own grid can
    pass for a lattice. Fewer than about ten judged numbers say little: a number off any lattice is
    a multiple of the finest step with a chance of 1 in 8 or less.
    """
    if not (math.isfinite(std) and std > 0):
        raise ValueError(f"std={std!r}: a finite number above 0 is needed")
    values = released.detach().flatten().double()
    near = values[values.abs() <= MAX_NOISE_SCALES * std]
    if step is not None:
        return LowBits(len(near), int(is_off_lattice(values, step).sum()), step)
    bits = lowest_set_bits(near)
    finest = math.floor(math.log2(FINEST_STEP * std))
    off = int((bits < finest).sum())
    return LowBits(
        len(near),
        off,
        0.0 if off else 2.0 ** (float(bits.min()) if bool((bits < NO_BIT).any()) else finest + 52),
    )

"""Steinke, Nasr and Jagielski (2023): a lower bound on epsilon from many canaries in a single run."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.stats import binom

from attacks.bounds import check_levels, largest_refuted


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
    return largest_refuted(lambda eps: one_run_p_value(m, guesses, correct, eps, delta) <= 1 - confidence)


def one_run_p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """P[at least ``correct`` right guesses] under any (epsilon, delta)-DP mechanism, at most."""
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, rate))
    if delta == 0 or correct == 0:
        return min(tail, 1.0)
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, rate))
    return min(tail + 2 * m * delta * float(np.max(below / np.arange(1, correct + 1))), 1.0)


def check_guesses(m: int, guesses: int, correct: int) -> None:
    """Raises ValueError for counts that no attack on m records has."""
    if not 0 <= correct <= guesses <= m or not m >= 1:
        raise ValueError(f"m={m}, guesses={guesses}, correct={correct}: 0 <= correct <= guesses <= m is needed")

"""Lower bounds on epsilon from many canaries in a single run.

Steinke, Nasr and Jagielski (2023): against one (epsilon, delta). Mahloujifar, Melis and Chaudhuri (2024): against a whole
trade-off curve f. A mechanism is f-DP if no test tells a record's presence from its absence with type I error a and type
II error below f(a), in either direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from attacks.statistics import chance_of_at_least, chance_of_exactly, check_levels, largest_refuted, shared_confidence
from attacks.tradeoff import Curve, approximate_dp, gaussian_dp


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
    tail = float(chance_of_at_least(correct, guesses, rate))
    if delta == 0 or correct == 0:
        return min(tail, 1.0)
    below = np.cumsum(chance_of_exactly(np.arange(correct - 1, -1, -1), guesses, rate))
    return min(tail + 2 * m * delta * float(np.max(below / np.arange(1, correct + 1))), 1.0)


def check_guesses(m: int, guesses: int, correct: int) -> None:
    """Raises ValueError for counts that no attack on m records has."""
    if not 0 <= correct <= guesses <= m or not m >= 1:
        raise ValueError(f"m={m}, guesses={guesses}, correct={correct}: 0 <= correct <= guesses <= m is needed")


# Mahloujifar, Melis and Chaudhuri (2024): one run against a whole trade-off curve f.
#
# A mechanism is f-DP if no test tells a record's presence from its absence with type I error a and type II error below
# f(a), in either direction. Let m records be in or out by independent fair coins, and let the attack make exactly
# ``guesses`` guesses, p_j being the chance that j are right. Their Theorem: for every set T of counts,
#
#     sum over j in T of j p_j / m  <=  F(sum over j in T of (guesses - j + 1) p_(j-1) / m),     F(x) = 1 - f(x).
#
# If at least ``correct`` right guesses had a chance of ``alpha`` or more, these inequalities would force more than all
# of the probability (their Algorithm 3): then f is refuted at level alpha. Nothing else is assumed of the mechanism, nor
# of the attack. What is refuted is f, so a bound on epsilon at delta is distribution-free only where f is the curve of
# all (epsilon, delta)-DP mechanisms.


def is_fdp_refuted(m: int, guesses: int, correct: int, curve: Curve, alpha: float) -> bool:
    """Whether f-DP for ``curve`` gives so many right guesses a chance below ``alpha``.

    curve: type I error -> smallest type II error; it must be its own inverse, as a curve that holds for both orders
    of a pair of neighbours is. Raises ValueError for impossible counts.
    """
    check_guesses(m, guesses, correct)
    right, wrong = alpha * correct / m, alpha * (guesses - correct) / m
    for count in range(correct - 1, -1, -1):
        least = max(wrong, float(curve(1 - right)))  # the inverse of F, as f is its own inverse
        if least == wrong:
            break  # nothing is forced any more
        right = min(right + count / (guesses - count) * (least - wrong), 1.0)
        wrong = least
    return right + wrong > guesses / m


def largest_refuted_parameter(
    m: int, guesses: int, correct: int, family: Callable[[float], Curve], *, confidence: float = 0.95
) -> float:
    """The largest parameter whose curve is refuted, 0 where none is.

    family: parameter >= 0 -> curve, larger = less private, with 0 for perfect privacy.
    """
    check_guesses(m, guesses, correct)
    check_levels(0.0, confidence)
    return largest_refuted(lambda value: is_fdp_refuted(m, guesses, correct, family(value), 1 - confidence))


@lru_cache(maxsize=4096)
def fdp_one_run(m: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95) -> float:
    """A bound on epsilon at ``delta`` for any mechanism: the largest epsilon whose whole DP region is refuted."""
    check_levels(delta, confidence)
    return largest_refuted_parameter(m, guesses, correct, lambda eps: approximate_dp(eps, delta), confidence=confidence)


@lru_cache(maxsize=4096)
def fdp_one_run_mu(m: int, guesses: int, correct: int, *, confidence: float = 0.95) -> float:
    """The largest mu for which mu-Gaussian DP is refuted. Read as an epsilon it is an estimate, no bound."""
    return largest_refuted_parameter(m, guesses, correct, gaussian_dp, confidence=confidence)


def one_run_bounds(m: int, counts: Sequence[tuple[int, int]], *, delta: float, confidence: float) -> dict[str, float]:
    """Both bounds by name, each the best of several (guesses, right guesses); all hold together at ``confidence``."""
    each = shared_confidence(confidence, 2 * len(counts))
    methods: dict[str, Callable[..., float]] = {"one_run": one_run, "fdp_one_run": fdp_one_run}
    return {name: max(bound(m, *c, delta=delta, confidence=each) for c in counts) for name, bound in methods.items()}

"""Lower bounds on epsilon from one run that includes many records, each by a fair bit.

One bound is against (epsilon, delta)-DP, the other against a whole trade-off curve. Imports no
torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from attacks.epsilon import VALIDITY, Bound, check_scores
from attacks.statistics import (
    chance_of_at_least,
    chance_of_exactly,
    check_levels,
    largest_refuted,
    shared_confidence,
)
from attacks.tradeoff import Curve, approximate_dp, gaussian_dp, gaussian_epsilon


@lru_cache(maxsize=4096)
def one_run(m: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95) -> float:
    """A bound from a single run (Steinke, Nasr and Jagielski 2023, Theorem 5.2).

    Args:
        m: records, each of which was in or out by an independent fair coin.
        guesses: how many of them the attack guessed, a number fixed beforehand.
        correct: how many guesses are right.
        delta: in [0, 1).
        confidence: in (0, 1).
    """
    check_guesses(m, guesses, correct)
    check_levels(delta, confidence)
    if guesses == 0:
        return 0.0
    return largest_refuted(
        lambda eps: one_run_p_value(m, guesses, correct, eps, delta) <= 1 - confidence
    )


def one_run_p_value(m: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """P[at least ``correct`` right guesses] under any (epsilon, delta)-DP mechanism, at most."""
    # With W ~ Binomial(r, e^epsilon / (1 + e^epsilon)) of r guesses,
    #     P[correct >= v] <= P[W >= v] + 2 m delta max over i in 1..v of P[v - i <= W < v] / i.
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(chance_of_at_least(correct, guesses, rate))
    if delta == 0 or correct == 0:
        return min(tail, 1.0)
    below = np.cumsum(chance_of_exactly(np.arange(correct - 1, -1, -1), guesses, rate))
    return min(tail + 2 * m * delta * float(np.max(below / np.arange(1, correct + 1))), 1.0)


def check_guesses(m: int, guesses: int, correct: int) -> None:
    """Raises ValueError for counts that no attack on m records has."""
    if not 0 <= correct <= guesses <= m or not m >= 1:
        raise ValueError(
            f"m={m}, guesses={guesses}, correct={correct}: 0 <= correct <= guesses <= m is needed"
        )


# Mahloujifar, Melis and Chaudhuri (2024): one run against a whole trade-off curve f. That is
# refuted, so a bound on epsilon at delta is distribution-free only if f is the curve of all
# (epsilon, delta)-DP mechanisms.
#
# A mechanism is f-DP if no test tells a record's presence from its absence with type I error a and
# type II error below f(a), in either direction. Let m records be in or out by independent fair
# coins, and let the attack make exactly ``guesses`` guesses, p_j being the chance that j are right.
# Their Theorem: for every set T of counts,
#
#     sum_(j in T) j p_j / m  <=  F(sum_(j in T) (guesses - j + 1) p_(j-1) / m),   F(x) = 1 - f(x).
#
# If at least ``correct`` right guesses had a chance of ``alpha`` or more, these inequalities would
# force more than all of the probability (their Algorithm 3): then f is refuted at level alpha.
# Nothing else is assumed.


def is_fdp_refuted(m: int, guesses: int, correct: int, curve: Curve, alpha: float) -> bool:
    """Whether f-DP for ``curve`` gives so many right guesses a chance below ``alpha``.

    ``curve`` must be its own inverse, as one that holds for both orders of a pair of neighbours is.
    Raises ValueError for impossible counts.
    """
    check_guesses(m, guesses, correct)
    right = alpha * correct / m
    wrong = alpha * (guesses - correct) / m
    for count in range(correct - 1, -1, -1):
        least = max(wrong, float(curve(1 - right)))  # the inverse of F, as f is its own inverse
        if least == wrong:
            break  # nothing is forced any more
        right = min(right + count / (guesses - count) * (least - wrong), 1.0)
        wrong = least
    return right + wrong > guesses / m


def largest_refuted_parameter(
    m: int,
    guesses: int,
    correct: int,
    family: Callable[[float], Curve],
    *,
    confidence: float = 0.95,
) -> float:
    """The largest parameter whose curve is refuted, 0 for none; ``family`` takes a parameter >= 0,
    where 0 is perfect privacy, to its curve."""
    check_guesses(m, guesses, correct)
    check_levels(0.0, confidence)
    return largest_refuted(
        lambda value: is_fdp_refuted(m, guesses, correct, family(value), 1 - confidence)
    )


@lru_cache(maxsize=4096)
def fdp_one_run(
    m: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95
) -> float:
    """A bound on epsilon at ``delta`` for any mechanism: the largest epsilon whose whole DP region
    is refuted."""
    check_levels(delta, confidence)
    return largest_refuted_parameter(
        m, guesses, correct, lambda eps: approximate_dp(eps, delta), confidence=confidence
    )


@lru_cache(maxsize=4096)
def fdp_one_run_mu(m: int, guesses: int, correct: int, *, confidence: float = 0.95) -> float:
    """The largest mu for which mu-Gaussian DP is refuted. Read as an epsilon it is an estimate, no
    bound."""
    return largest_refuted_parameter(m, guesses, correct, gaussian_dp, confidence=confidence)


def one_run_bounds(
    m: int, counts: Sequence[tuple[int, int]], *, delta: float, confidence: float
) -> dict[str, float]:
    """Both bounds by name, each the best of several (guesses, right guesses); all hold together at
    ``confidence``."""
    each = shared_confidence(confidence, 2 * len(counts))
    methods: dict[str, Callable[..., float]] = {"one_run": one_run, "fdp_one_run": fdp_one_run}
    best = {}
    for name, bound in methods.items():
        best[name] = max(bound(m, *pair, delta=delta, confidence=each) for pair in counts)
    return best


def fdp_one_run_gaussian(
    m: int, guesses: int, correct: int, *, delta: float, confidence: float = 0.95
) -> float:
    """An estimate: the epsilon at ``delta`` of the largest mu-Gaussian DP that is refuted."""
    return gaussian_epsilon(fdp_one_run_mu(m, guesses, correct, confidence=confidence), delta)


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
    """A lower bound on epsilon from one run that includes each record by an independent fair coin.

    Args:
        scores: (m,), larger = member.
        member: (m,) inclusion bits of the run.
        delta: at which epsilon is bounded, in [0, 1).
        generator: breaks ties, so that the order of the records cannot give their membership away.
        guesses: pairs (k_in, k_out), fixed beforehand: the k_in highest scores are guessed in, the
            k_out lowest out; several pairs share alpha (Bonferroni).
        confidence: in (0, 1).
        method: ``one_run`` (Steinke, Nasr and Jagielski 2023) and ``fdp_one_run`` (Mahloujifar,
            Melis and Chaudhuri 2024) hold for any mechanism; ``fdp_one_run_gaussian`` is an
            estimate for Gaussian trade-off curves.

    Returns:
        The largest bound over the pairs, with its validity.

    Raises:
        ValueError: for NaN, unequal lengths, an unknown method, or pairs that guess more than m.
    """
    bounds: dict[str, Callable[..., float]] = {
        "one_run": one_run,
        "fdp_one_run": fdp_one_run,
        "fdp_one_run_gaussian": fdp_one_run_gaussian,
    }
    if method not in bounds:
        raise ValueError(f"method={method!r}: allowed are {', '.join(bounds)}")
    each = shared_confidence(confidence, max(len(guesses), 1))
    counts = right_guesses(scores, member, guesses, generator)
    bound = bounds[method]
    value = max(bound(len(scores), *pair, delta=delta, confidence=each) for pair in counts)
    return Bound(value, method, VALIDITY[method], delta, confidence)


def right_guesses(
    scores: Any, member: Any, guesses: Sequence[tuple[int, int]], generator: np.random.Generator
) -> list[tuple[int, int]]:
    """(guesses made, guesses right) for each pair (k_in, k_out) of ``one_run_from_scores``.

    Raises ValueError for pairs that guess more than there is, and for no pair.
    """
    values, is_member = check_scores(scores, member)
    if not guesses or any(min(pair) < 0 or sum(pair) > len(values) for pair in guesses):
        raise ValueError(
            f"guesses={guesses}: pairs (k_in, k_out) with k_in + k_out <= {len(values)} are needed"
        )
    ranked = is_member[np.lexsort((generator.permutation(len(values)), -values))]
    counts = []
    for k_in, k_out in guesses:
        right_in = int(ranked[:k_in].sum())
        right_out = int((~ranked[len(ranked) - k_out :]).sum())
        counts.append((k_in + k_out, right_in + right_out))
    return counts

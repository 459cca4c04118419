"""The f-DP one-run bound against published ceilings, a linear program of its theorem, and exact
error rates."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from attacks.one_run import (
    fdp_one_run,
    fdp_one_run_mu,
    is_fdp_refuted,
    largest_refuted_parameter,
    one_run,
    one_run_from_scores,
)
from attacks.tradeoff import approximate_dp, gaussian_dp, gaussian_epsilon
from tests.reference.one_run import largest_tail, tangents, upper_sets

DELTA = 1e-5


@pytest.mark.parametrize(
    ("m", "expected"), [(100, 8.2), (500, 11.1), (1000, 12.3), (5000, 15.0), (10000, 16.1)]
)
def test_perfect_attacks_reach_the_ceilings_of_jax_privacy(m, expected):
    """Figures that jax-privacy's auditor gives for m right guesses of m at 95 %, as an epsilon at
    delta 1e-5."""
    assert gaussian_epsilon(fdp_one_run_mu(m, m, m), DELTA) == pytest.approx(expected, abs=0.06)


def critical_alpha(m, guesses, correct, curve):
    """The smallest level at which ``curve`` is refuted."""
    low = 0.0
    high = 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if is_fdp_refuted(m, guesses, correct, curve, middle) else (middle, high)
        )
    return high


def dp_lines(eps, delta):
    return [
        (0.0, 0.0),
        (1 - delta, -math.exp(eps)),
        (math.exp(-eps) * (1 - delta), -math.exp(-eps)),
    ]


@pytest.mark.parametrize(
    ("m", "guesses", "correct", "eps", "delta"),
    [(12, 12, 10, 1.0, 0.0), (12, 8, 8, 1.0, 0.01), (30, 10, 9, 0.5, 1e-3), (6, 6, 5, 2.0, 0.1)],
)
def test_the_recursion_is_the_linear_program_of_the_theorem(m, guesses, correct, eps, delta):
    tail = largest_tail(m, guesses, correct, dp_lines(eps, delta), upper_sets(guesses))
    assert critical_alpha(m, guesses, correct, approximate_dp(eps, delta)) == pytest.approx(
        tail, rel=1e-6
    )


def test_the_recursion_is_the_linear_program_for_a_gaussian_curve():
    mu = 1.0
    m = 20
    guesses = 8
    correct = 8
    at = norm.cdf(np.linspace(-5, 5, 4000))
    lines = tangents(gaussian_dp(mu), lambda a: -math.exp(mu * norm.ppf(1 - a) - mu * mu / 2), at)
    tail = largest_tail(m, guesses, correct, lines, upper_sets(guesses))
    assert critical_alpha(m, guesses, correct, gaussian_dp(mu)) == pytest.approx(tail, rel=1e-4)


def test_no_other_sets_of_counts_would_be_missed_by_more_than_their_own_strength():
    """With all subsets the theorem is at least as strong, so the recursion may only err on the
    careful side."""
    every = [s for size in range(1, 7) for s in itertools.combinations(range(6), size)]
    tail = largest_tail(8, 5, 5, dp_lines(1.0, 0.01), every)
    assert tail <= critical_alpha(8, 5, 5, approximate_dp(1.0, 0.01)) + 1e-9


@pytest.mark.parametrize("eps", [0.5, 1.0, 2.0])
def test_the_level_holds_exactly_for_randomised_response(eps):
    """All m bits answered: right guesses are Binomial(m, e^eps / (1 + e^eps)), whatever else the
    attack does."""
    m = 200
    keep = 1 / (1 + math.exp(-eps))
    refuting = [c for c in range(m + 1) if is_fdp_refuted(m, m, c, approximate_dp(eps, 0.0), 0.05)]
    assert refuting == list(range(refuting[0], m + 1))  # more right guesses refute more
    assert 1e-3 < binom.sf(refuting[0] - 1, m, keep) <= 0.05


@pytest.mark.parametrize("share", [0.2, 0.3, 1.0])
def test_the_level_holds_exactly_for_a_gaussian_mechanism(share):
    mu = 1.0
    m = 400
    alpha = 0.05
    k = int(m * share / 2)
    refuting = min(
        c for c in range(2 * k + 1) if is_fdp_refuted(m, 2 * k, c, gaussian_dp(mu), alpha)
    )
    rng = np.random.default_rng(11)
    member = rng.random((4000, m)) < 0.5
    order = np.argsort(rng.normal(size=(4000, m)) + mu * member, axis=1)
    right = np.take_along_axis(member, order[:, -k:], 1).sum(1) + (
        ~np.take_along_axis(member, order[:, :k], 1)
    ).sum(1)
    assert (right >= refuting).mean() <= alpha


def test_a_tight_attack_gets_further_than_steinke_s_bound_and_stays_below_the_truth():
    rng = np.random.default_rng(3)
    member = rng.random(1000) < 0.5
    scores = rng.normal(size=1000) + 2.0 * member
    options = {"delta": DELTA, "generator": rng, "guesses": [(25, 25)]}
    steinke = one_run_from_scores(scores, member, **options)
    general = one_run_from_scores(scores, member, method="fdp_one_run", **options)
    gaussian = one_run_from_scores(scores, member, method="fdp_one_run_gaussian", **options)
    assert steinke.value < general.value + 0.05 < gaussian.value < gaussian_epsilon(2.0, DELTA)
    assert gaussian.value > 1.3 * steinke.value
    assert [b.validity for b in (steinke, general, gaussian)] == [
        "finite_sample",
        "finite_sample",
        "gaussian_only",
    ]


def test_the_gaussian_reading_is_no_bound_for_randomised_response():
    """Why it is marked as an estimate: of a mechanism with epsilon 1 it says more."""
    m = 20_000
    right = int(m / (1 + math.exp(-1)))
    assert (
        gaussian_epsilon(fdp_one_run_mu(m, m, right), DELTA)
        > 1.5
        > 1.0
        > fdp_one_run(m, m, right, delta=DELTA)
        > 0.9
    )


def test_without_delta_the_general_bound_is_nearly_steinke_s():
    assert fdp_one_run(1000, 1000, 900, delta=0.0) == pytest.approx(
        one_run(1000, 1000, 900, delta=0.0), abs=0.02
    )
    assert (
        fdp_one_run(1000, 100, 90, delta=1e-3) > one_run(1000, 100, 90, delta=1e-3) + 0.5
    )  # delta costs it less


def test_a_family_that_is_not_refuted_gives_zero():
    assert (
        largest_refuted_parameter(100, 100, 50, gaussian_dp)
        == 0.0
        == fdp_one_run(100, 0, 0, delta=DELTA)
    )
    with pytest.raises(ValueError, match="guesses"):
        fdp_one_run(10, 5, 6, delta=0.0)
    with pytest.raises(ValueError, match="method"):
        one_run_from_scores(
            [0.0],
            [True],
            delta=0.0,
            generator=np.random.default_rng(0),
            guesses=[(1, 0)],
            method="x",
        )

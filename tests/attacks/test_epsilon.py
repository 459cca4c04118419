"""Tests of ``attacks.epsilon``."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta, binom, norm

from attacks.epsilon import (
    COMPARISON_CONFIDENCE,
    bayesian,
    best_threshold,
    clopper_pearson,
    confusion_counts_at,
    from_scores,
    gaussian,
)
from attacks.one_run import one_run, one_run_from_scores, one_run_p_value
from attacks.statistics import largest_refuted
from attacks.tradeoff import gaussian_epsilon

# Lower bounds against published numbers, brute force, and simulated coverage.


DELTA = 1e-5


# n a side (m for one run): Clopper-Pearson, Bayesian, Gaussian, one run, one run with r = m/10
# (perfect attack)
@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (100, (3.28, 4.90, 21.1, 3.49, 1.05)),
        (500, (4.91, 6.52, 32.0, 5.10, 2.77)),
        (1000, (5.60, 7.21, 36.5, 5.78, 3.47)),
        (10000, (7.90, 9.51, 50.8, 7.83, 5.53)),
    ],
)
def test_perfect_attacks_reach_the_known_ceilings(n, expected):
    counts = [f(n, 0, 0, n, delta=DELTA) for f in (clopper_pearson, bayesian, gaussian)]
    runs = [one_run(n, r, r, delta=DELTA) for r in (n, n // 10)]
    np.testing.assert_allclose(counts + runs, expected, rtol=0.002, atol=0.006)


def test_clopper_pearson_is_its_formula():
    tp = 70
    fn = 30
    fp = 5
    tn = 95
    fnr = beta.ppf(0.975, fn + 1, tp)
    fpr = beta.ppf(0.975, fp + 1, tn)
    expected = max(math.log((1 - DELTA - fnr) / fpr), math.log((1 - DELTA - fpr) / fnr))
    assert clopper_pearson(tp, fn, fp, tn, delta=DELTA) == pytest.approx(expected)
    assert clopper_pearson(tn, fp, fn, tp, delta=DELTA) == pytest.approx(expected)  # roles swapped
    assert clopper_pearson(50, 50, 50, 50, delta=DELTA) == 0.0


def test_one_run_p_value_is_the_theorem_summed_by_hand():
    m = 40
    r = 20
    v = 15
    eps = 0.7
    delta = 1e-3
    q = math.exp(eps) / (1 + math.exp(eps))
    pmf = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    alpha = max(sum(pmf[v - i : v]) / i for i in range(1, v + 1))
    assert one_run_p_value(m, r, v, eps, delta) == pytest.approx(
        sum(pmf[v:]) + 2 * m * delta * alpha
    )
    bound = one_run(m, r, v, delta=delta)
    assert (
        one_run_p_value(m, r, v, bound + 1e-6, delta)
        > 0.05
        >= one_run_p_value(m, r, v, bound, delta) - 1e-9
    )


def test_one_run_loses_power_when_delta_times_records_is_not_small():
    assert one_run(1000, 100, 90, delta=0.0) == pytest.approx(1.63, abs=0.005)
    assert one_run(1000, 100, 90, delta=1e-3) == pytest.approx(0.39, abs=0.005)
    assert one_run(1000, 0, 0, delta=DELTA) == 0.0


def test_gaussian_epsilon_inverts_the_trade_off():
    assert gaussian_epsilon(1.0, DELTA) == pytest.approx(4.377, abs=1e-3)
    assert gaussian_epsilon(3.0, DELTA) == pytest.approx(16.675, abs=1e-3)
    assert gaussian_epsilon(0.0, DELTA) == 0.0
    with pytest.raises(ValueError, match="delta"):
        gaussian(9, 1, 1, 9, delta=0.0)


def test_bayesian_in_one_dimension_agrees_with_the_two_dimensional_posterior():
    rng = np.random.default_rng(5)
    tp = 60
    fn = 40
    fp = 20
    tn = 80
    x = rng.beta(fp + 0.5, tn + 0.5, 400_000)
    y = rng.beta(fn + 0.5, tp + 0.5, 400_000)
    # the smallest epsilon whose region holds the draw
    eps = np.maximum.reduce(
        [np.log((1 - DELTA - b) / a) for a, b in ((x, y), (y, x), (1 - x, 1 - y), (1 - y, 1 - x))]
    )
    assert bayesian(tp, fn, fp, tn, delta=DELTA) == pytest.approx(np.quantile(eps, 0.05), abs=0.01)


def test_a_fixed_threshold_covers_on_randomised_response():
    """Pure epsilon 1: sensitivity checked both ways, and the Gaussian bound is seen to be unsound
    here."""
    rng = np.random.default_rng(2)
    keep = math.e / (1 + math.e)
    runs = 300
    n = 500
    tp = rng.binomial(n, keep, runs)
    fp = rng.binomial(n, 1 - keep, runs)
    exact = [clopper_pearson(a, n - a, b, n - b, delta=DELTA) for a, b in zip(tp, fp)]
    above = sum(value > 1.0 for value in exact)
    assert binom.sf(above - 1, runs, 0.05) > 1e-3 and np.mean(exact) > 0.6
    loose = [gaussian(a, n - a, b, n - b, delta=DELTA) for a, b in zip(tp, fp)]
    assert np.mean([value > 1.0 for value in loose]) > 0.9


def test_null_claims_nothing_more_often_than_its_level():
    rng = np.random.default_rng(4)
    split = single = several = 0
    for _ in range(200):
        member = rng.random(400) < 0.5
        scores = rng.normal(size=400)
        split += from_scores(scores, member, delta=DELTA, generator=rng).value > 0
        several += (
            from_scores(scores, member, delta=DELTA, thresholds=[-1.0, 0.0, 1.0, 2.0]).value > 0
        )
        guesses = [(20, 20), (100, 100), (200, 200)]
        single += (
            one_run_from_scores(scores, member, delta=DELTA, generator=rng, guesses=guesses).value
            > 0
        )
    assert max(split, several, single) <= 10  # 5 % of 200


def test_bounds_stay_below_a_gaussian_mechanism_and_are_not_idle():
    rng = np.random.default_rng(6)
    member = np.arange(4000) < 2000
    scores = rng.normal(size=4000) + member
    truth = gaussian_epsilon(1.0, DELTA)
    fixed = from_scores(scores, member, delta=DELTA, thresholds=[1.5])
    split = from_scores(scores, member, delta=DELTA, generator=rng)
    near = from_scores(scores, member, delta=DELTA, method="gaussian", thresholds=[1.5])
    assert 0.5 < split.value < truth and 0.5 < fixed.value < near.value < truth
    assert (split.validity, near.validity) == ("finite_sample", "gaussian_only")


def test_fixed_threshold_equals_its_counts():
    rng = np.random.default_rng(8)
    member = rng.random(300) < 0.5
    scores = rng.normal(size=300) + 2 * member
    hit = scores >= 1.0
    counts = [
        int((a & b).sum())
        for a, b in ((hit, member), (~hit, member), (hit, ~member), (~hit, ~member))
    ]
    assert from_scores(scores, member, delta=0.0, thresholds=[1.0]).value == clopper_pearson(
        *counts, delta=0.0
    )


def test_ties_cannot_reveal_membership_through_the_order_of_the_records():
    member = np.arange(400) < 200  # members first, and every score equal
    rng = np.random.default_rng(0)
    kwargs = {"delta": DELTA, "generator": rng, "guesses": [(200, 200)]}
    assert one_run_from_scores(np.zeros(400), member, **kwargs).value < 0.2


@pytest.mark.parametrize("guesses", [[], [(-1, 3)], [(3, -1)], [(2, 2), (200, 201)]])
def test_guesses_that_cannot_be_made_are_refused(guesses):
    member = np.arange(400) < 200
    with pytest.raises(ValueError, match=r"k_in \+ k_out <= 400"):
        one_run_from_scores(
            np.zeros(400), member, delta=DELTA, generator=np.random.default_rng(0), guesses=guesses
        )


def test_one_run_recovers_epsilon_of_randomised_response():
    rng = np.random.default_rng(9)
    member = rng.random(20_000) < 0.5
    told = np.where(rng.random(20_000) < math.exp(2) / (1 + math.exp(2)), member, ~member)
    scores = told + 0.1 * norm.ppf(rng.random(20_000))
    bound = one_run_from_scores(scores, member, delta=0.0, generator=rng, guesses=[(5000, 5000)])
    assert 1.8 < bound.value < 2.0


@pytest.mark.parametrize("truth", [0.0, 1e-6, 0.3, 1.0, 7.7, 900.0])
def test_the_largest_refuted_value_is_found_from_below(truth):
    assert largest_refuted(lambda value: value < truth) == pytest.approx(truth, rel=1e-9, abs=1e-11)
    assert largest_refuted(lambda value: value < truth) <= truth
    assert largest_refuted(lambda value: True, limit=50) == 64.0  # all that was asked is refuted


@pytest.mark.parametrize(
    "call",
    [
        lambda: clopper_pearson(1, 2, 3, 4, delta=float("nan")),
        lambda: clopper_pearson(-1, 2, 3, 4, delta=0.0),
        lambda: clopper_pearson(0, 0, 3, 4, delta=0.0),
        lambda: one_run(10, 11, 5, delta=0.0),
        lambda: one_run(10, 5, 6, delta=0.0),
        lambda: from_scores([0.0, 1.0], [True, False], delta=0.0),
        lambda: from_scores([0.0, 1.0], [True, False], delta=0.0, thresholds=[]),
        lambda: from_scores([0.0, 1.0], [True, False], delta=0.0, method="point", thresholds=[0.5]),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(ValueError):
        call()


# The threshold that a method chooses on its own trials.


DELTA_THRESHOLDS = 1e-5
BOUNDS = {"clopper_pearson": clopper_pearson, "gaussian": gaussian}


def drawn(n=600, seed=0):
    rng = np.random.default_rng(seed)
    inside = rng.random(n) < 0.5
    return rng.normal(size=n) + inside, inside


def test_counts_are_counted_one_by_one():
    values = np.array([0.0, 1.0, 1.0, 2.0, 3.0])
    inside = np.array([False, True, False, True, True])
    for at, *four in zip(
        [-1.0, 1.0, 2.5], *confusion_counts_at(values, inside, np.array([-1.0, 1.0, 2.5]))
    ):
        hit = values >= at
        assert four == [
            (a & b).sum()
            for a, b in ((hit, inside), (~hit, inside), (hit, ~inside), (~hit, ~inside))
        ]


@pytest.mark.parametrize("method", ["clopper_pearson", "gaussian"])
def test_each_method_ranks_by_its_own_bound(method):
    values, inside = drawn()
    at = best_threshold(values, inside, DELTA_THRESHOLDS, method)

    def bound(threshold):
        hit = values >= threshold
        counts = [
            int((a & b).sum())
            for a, b in ((hit, inside), (~hit, inside), (hit, ~inside), (~hit, ~inside))
        ]
        return BOUNDS[method](*counts, delta=DELTA_THRESHOLDS, confidence=COMPARISON_CONFIDENCE)

    assert bound(at) == pytest.approx(max(bound(value) for value in values), abs=0.1)


def test_the_gaussian_estimate_gains_from_its_own_threshold():
    rng = np.random.default_rng(1)
    split = [
        from_scores(*drawn(1000, s), delta=DELTA_THRESHOLDS, method="gaussian", generator=rng).value
        for s in range(20)
    ]
    assert (
        np.median(split) > 2.2
    )  # 1.2 with a threshold that Clopper-Pearson chose; 2.8 with 0.5 and all trials


def test_without_any_bound_the_widest_gap_is_taken():
    values = np.array([0.0, 0.0, 1.0, 1.0])
    inside = np.array([False, True, False, True])
    assert best_threshold(values, inside, DELTA_THRESHOLDS) in (0.0, 1.0)
    with pytest.raises(KeyError):
        best_threshold(values, inside, DELTA_THRESHOLDS, "one_run")
    for seed in range(20):  # nine trials bound nothing
        values = np.random.default_rng(seed).permutation(9) / 9.0
        inside = np.arange(9) < 3 + seed % 3
        gaps = {at: np.mean(values[inside] >= at) - np.mean(values[~inside] >= at) for at in values}
        assert gaps[best_threshold(values, inside, DELTA_THRESHOLDS)] == pytest.approx(
            max(gaps.values())
        )

"""The order statistics against other implementations and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from privdd.reproduce.results import (
    HOLDS,
    HOLDS_IN_MEAN,
    REVERSED,
    REVERSED_IN_MEAN,
    OrderStatement,
    RowPair,
    compare_pair,
    kendall_tau,
    leader_statement,
    order_statement,
    p_value,
)

RNG = np.random.default_rng(0)
ROWS = {name: RNG.normal(mean, 0.02, 4).tolist() for name, mean in zip("abcd", (0.8, 0.7, 0.72, 0.5), strict=True)}
PRINTED = {"a": 90.0, "b": 85.0, "c": 80.0, "d": 80.0}


def test_p_is_scipys_paired_t_test() -> None:
    for x, y in itertools.permutations(ROWS.values(), 2):
        assert p_value(x, y) == pytest.approx(stats.ttest_rel(x, y, alternative="greater").pvalue)


def test_p_where_a_test_has_nothing_to_go_on() -> None:
    assert p_value([0.5], [0.4]) is None
    assert p_value([0.5, 0.6], [0.4, 0.5]) == pytest.approx(0, abs=1e-6)  # the same gain in every seed
    assert p_value([0.5, 0.6], [0.5, 0.6]) == 0.5
    assert p_value([0.4, 0.5], [0.5, 0.6]) == pytest.approx(1, abs=1e-6)


def test_p_is_uniform_where_there_is_no_gain() -> None:
    rng = np.random.default_rng(1)
    ps = [p_value(rng.normal(size=3), rng.normal(size=3)) for _ in range(400)]
    assert stats.kstest(ps, "uniform").pvalue > 0.001


def test_a_pair_is_judged_by_sign_and_p() -> None:
    kinds = {(0.1, 0.01): HOLDS, (0.1, 0.2): HOLDS_IN_MEAN, (-0.1, 0.7): REVERSED_IN_MEAN, (-0.1, 0.99): REVERSED, (0.1, None): HOLDS_IN_MEAN}
    for (gain, p), verdict in kinds.items():
        assert RowPair("a", "b", gain, p).verdict == verdict
    assert compare_pair("a", "d", ROWS).gain == pytest.approx(np.mean(ROWS["a"]) - np.mean(ROWS["d"]))


def test_a_statement_about_pairs_is_as_weak_as_its_weakest() -> None:
    def whole(*ps: float) -> OrderStatement:
        return OrderStatement(tuple(RowPair("a", "b", 0.5 - p, p) for p in ps))

    assert whole(0.01, 0.2).p == 0.2 and whole(0.01, 0.2).verdict == HOLDS_IN_MEAN
    assert whole(0.01, 0.02).verdict == HOLDS and whole(0.01, 0.6).verdict == REVERSED_IN_MEAN and whole(0.01, 0.99).verdict == REVERSED
    assert OrderStatement((RowPair("a", "b", 0.1, None),)).p is None and OrderStatement(()).verdict == ""


def test_the_intersection_union_test_errs_as_seldom_as_it_says() -> None:
    """Two rows equal, the third far behind: "a leads all" is false, and is found in at most 5 % of draws."""
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(600):
        rows = {name: rng.normal(mean, 1, 3).tolist() for name, mean in (("a", 0), ("b", 0), ("c", -50))}
        found += leader_statement({"a": 3.0, "b": 2.0, "c": 1.0}, rows).verdict == HOLDS
    assert stats.binomtest(found, 600, 0.05, alternative="greater").pvalue > 0.001
    assert found > 5  # and it does find such gains by chance: the test has its level


def test_the_leader_is_compared_with_all_and_the_order_by_neighbours() -> None:
    assert [(p.better, p.worse) for p in leader_statement(PRINTED, ROWS).pairs] == [("a", "b"), ("a", "c"), ("a", "d")]
    assert [(p.better, p.worse) for p in order_statement(PRINTED, ROWS).pairs] == [("a", "b"), ("b", "c")]  # c and d are printed equal


def test_kendall_by_brute_force() -> None:
    """Over all orders of our means: tau and the number of pairs that agree, counted pair by pair."""
    printed = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    for values in itertools.permutations((0.1, 0.2, 0.3, 0.4)):
        ours = {row: [value] for row, value in zip(printed, values, strict=True)}
        agree = sum(ours[x] > ours[y] for x, y in itertools.combinations("abcd", 2))
        assert kendall_tau(printed, ours) == (pytest.approx((agree - (6 - agree)) / 6), agree, 6)
    assert kendall_tau(PRINTED, ROWS)[2] == 5 and kendall_tau({"a": 2.0, "b": 1.0}, {"a": [0.5], "b": [0.5]})[0] == 0.0

"""Rare names, shapes and flags beside continuous noise: ranked by their own odds, and no sound choice of keys is accused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privdd.blackbox.distinguishers import MIN_VALUES, ReleaseMarks, bound_by_distinguishing
from privdd.blackbox.screening import outcome_odds
from privdd.blackbox.transcripts import BoundLevel, PairSample, Transcripts

RNG = np.random.default_rng(3)
EPSILON, DELTA = 1.0, 1e-5
AXIS = np.array([1.0])


def histogram(keys: list[int], threshold: float) -> dict[int, float]:
    """Noised counts of the keys that are there, those above a threshold."""
    noised = {key: keys.count(key) + RNG.laplace(0, 1 / EPSILON) for key in sorted(set(keys))}
    return {key: count for key, count in noised.items() if count > threshold}


def of_keys(keys: list[int], threshold: float, n: int) -> Transcripts:
    found = [histogram(keys, threshold) for _ in range(n)]
    size = max((len(one) for one in found), default=0)
    rows = np.array([[*one.values(), *[0.0] * (size - len(one))] for one in found])
    return Transcripts(rows[:, None], [f"dict{[str(key) for key in one]}" for one in found])


def flagged(share: float, n: int) -> Transcripts:
    """A number with noise, shifted by nothing, and a flag that is seldom set."""
    return Transcripts(np.stack([RNG.normal(size=n), RNG.random(n) < share], 1)[:, None], ["float;int"] * n)


def seen(present: Transcripts, absent: Transcripts, more: tuple[Transcripts, Transcripts]) -> float:
    return bound_by_distinguishing(PairSample((present, absent), more, AXIS), BoundLevel(DELTA, 0.999)).epsilon


OTHERS = [1, 1, 1, 2, 2, 2, 2, 3, 3, 3]


def test_a_key_that_only_one_side_has_refutes_a_threshold_that_is_too_low_and_not_the_right_one() -> None:
    for threshold, least, most in ((2.0, 3.0, math.inf), (1 + math.log(1 / (2 * DELTA)), 0.0, EPSILON)):
        sides = [of_keys(keys, threshold, 3000) for keys in ([*OTHERS, 9], OTHERS) * 2]
        assert least <= seen(sides[0], sides[1], (sides[2], sides[3])) <= most


@pytest.mark.parametrize(("share", "least"), [(0.03, 1.5), (0.0, 0.0)])
def test_a_flag_that_is_seldom_set_counts_by_its_own_odds(share: float, least: float) -> None:
    sides = [flagged(q, 4000) for q in (share, 0.0) * 2]
    found = seen(sides[0], sides[1], (sides[2], sides[3]))
    assert found >= least if share else found == 0
    assert (outcome_odds(flagged(share, 300), flagged(0.0, 300), 0.5) > 0) is bool(share)


def test_marks_are_words_their_order_and_values_that_come_back() -> None:
    n = 40
    noise = RNG.normal(size=(n, 2))
    noise[::2, 1] = 0.25  # a number that comes back beside noise
    rows, codes = noise[:, None], ["dict['a', 'b']"] * n
    other = Transcripts(RNG.normal(size=(n, 1, 2)), ["dict['b', 'a']"] * (n // 2) + ["dict['b']"] * (n // 2))
    marks = ReleaseMarks.from_sides(Transcripts(rows, codes), other)
    assert marks is not None and marks.atoms == ((1, 0.25),)
    assert {"dict['a', 'b']", "dict['b', 'a']", "'a'"} <= {*marks.words} and "'b'" not in marks.words
    assert marks.find_marks(Transcripts(rows, codes)).sum(0).tolist() == [n if w in ("'a'", codes[0]) else 0 for w in marks.words] + [n // 2]
    assert ReleaseMarks.from_sides(Transcripts(rows, codes), other, values=MIN_VALUES).atoms == ()  # type: ignore[union-attr]


def test_noise_alone_has_no_marks() -> None:
    one, other = (Transcripts(RNG.normal(size=(50, 1, 3)), ["float64(3,)"] * 50) for _ in range(2))
    assert ReleaseMarks.from_sides(one, other) is None and outcome_odds(one, other, 0.5) == 0

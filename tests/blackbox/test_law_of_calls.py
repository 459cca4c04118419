"""A sum of calls is nearly normal in its middle, whatever noise the calls have; its tails are those of the calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from privdd.blackbox.noise_laws import bound_shift, law_of_calls, tail_epsilon
from privdd.blackbox.transcripts import BoundLevel, PairSample, Transcripts

Sides = tuple[Transcripts, Transcripts]
CALLS = 20


def _sides(noise: Callable[..., np.ndarray], n: int = 4000) -> Sides:
    """One number a call; the record moves it by 1 in each of twenty calls, under noise that is 0.2-DP if it is Laplace."""
    one, other = noise(size=(n, CALLS, 1)), noise(size=(n, CALLS, 1))
    return Transcripts(one + 1.0, ["f"] * n), Transcripts(other, ["f"] * n)


@pytest.mark.parametrize(("law", "found"), [("laplace", "other"), ("normal", "gaussian")])
def test_a_sum_of_calls_is_normal_only_where_each_call_is(law: str, found: str) -> None:
    rng = np.random.default_rng(1)
    noise = lambda size: getattr(rng, law)(0.0, 5.0, size)  # noqa: E731
    trained, fresh = _sides(noise), _sides(noise)
    asked = {"delta": 0.0, "confidence": 0.9999}
    assert law_of_calls(*fresh) == found and law_of_calls(fresh[1]) == found
    assert law_of_calls(Transcripts(fresh[1].rows.sum(1, keepdims=True), fresh[1].codes)) == "gaussian"
    moved = bound_shift(PairSample(trained, fresh, np.ones(1)), BoundLevel(**asked))
    assert (moved.law, moved.epsilon > 0) == (found, found == "gaussian")
    assert (tail_epsilon(PairSample(trained, fresh, np.ones(1)), BoundLevel(**asked)) > 0) == (found == "gaussian")


def _one_number(noise: Callable[[int], np.ndarray], gap: float, n: int) -> tuple[Sides, Sides]:
    """Training and fresh transcripts of one number, moved by ``gap``."""
    made = [[Transcripts(noise(n)[:, None, None] + at, ["f"] * n) for at in (gap, 0.0)] for _ in range(2)]
    return (made[0][0], made[0][1]), (made[1][0], made[1][1])


def test_logistic_noise_is_not_taken_for_normal_where_transcripts_are_few() -> None:
    """It is 1-DP; normal noise of its size would be 2.9-DP at 1e-12, and a few hundred transcripts tell them apart badly."""
    rng = np.random.default_rng(2)
    for n in (200, 500, 1000):
        for _ in range(20):
            trained, fresh = _one_number(lambda k: rng.logistic(0.0, 1.0, k), 1.0, n)
            assert bound_shift(PairSample(trained, fresh, np.ones(1)), BoundLevel(0.0, 0.9999)).epsilon <= 1.05


@pytest.mark.parametrize(("others", "noise"), [(30, 0.0), (16, 1.0), (100, 1.0)])
def test_logistic_noise_is_not_taken_for_that_of_the_numbers_beside_it(others: int, noise: float) -> None:
    """A 4-DP count beside numbers that never change, or whose noise is normal: they are many, and say nothing of it."""
    rng = np.random.default_rng(4)

    def block(n: int, at: float) -> Transcripts:
        return Transcripts(np.column_stack([rng.logistic(at, 0.25, n), noise * rng.normal(size=(n, others))])[:, None], ["f"] * n)

    for n in (200, 500):
        for _ in range(10):
            trained, fresh = [(block(n, 1.0), block(n, 0.0)) for _ in range(2)]
            assert bound_shift(PairSample(trained, fresh, np.eye(others + 1)[0]), BoundLevel(1e-6, 0.9999)).epsilon <= 4.0


def test_a_normal_number_beside_many_is_believed_from_its_own_numbers_on() -> None:
    rng = np.random.default_rng(5)
    for n, law in ((200, "other"), (1000, "gaussian")):
        made = [[Transcripts((rng.normal(size=(n, 40)) + at * np.eye(40)[0])[:, None], ["f"] * n) for at in (1.0, 0.0)] for _ in range(2)]
        assert bound_shift(PairSample((made[0][0], made[0][1]), (made[1][0], made[1][1]), None), BoundLevel(1e-6, 0.9999)).law == law


def test_a_number_whose_skew_the_record_turns_round_is_not_laplace_like_those_beside_it() -> None:
    """The piecewise mechanism (Wang et al. 2019) at epsilon 2, a number that goes from -1 to 1, beside Laplace noise."""
    rng, n, s = np.random.default_rng(3), 4000, np.e
    ends = (s + 1) / (s - 1)

    def answers(sign: float) -> Transcripts:
        near = rng.random(n) < s / (s + 1)
        moved = sign * np.where(near, rng.uniform(1.0, ends, n), rng.uniform(-ends, 1.0, n))
        return Transcripts(np.column_stack([moved, rng.laplace(size=(n, 15))])[:, None], ["f"] * n)

    trained, fresh = [(answers(1.0), answers(-1.0)) for _ in range(2)]
    assert law_of_calls(*fresh) == "laplace"
    moved = bound_shift(PairSample(trained, fresh, np.eye(16)[0]), BoundLevel(0.0, 0.9999))
    assert (moved.law, moved.epsilon) == ("other", 0.0)

"""A sum of calls is nearly normal in its middle, whatever noise the calls have; its tails are those of the calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from privdd.checking.sampled import Block
from privdd.checking.shift_law import law_of_calls, shift
from privdd.checking.tail_law import tail_epsilon

Sides = tuple[Block, Block]
CALLS = 20


def _sides(noise: Callable[..., np.ndarray], n: int = 2000) -> Sides:
    """One number a call; the record moves it by 1 in each of twenty calls, under noise that is 0.2-DP if it is Laplace."""
    one, other = noise(size=(n, CALLS, 1)), noise(size=(n, CALLS, 1))
    return Block(one + 1.0, ["f"] * n), Block(other, ["f"] * n)


@pytest.mark.parametrize(("law", "found"), [("laplace", "other"), ("normal", "gaussian")])
def test_a_sum_of_calls_is_normal_only_where_each_call_is(law: str, found: str) -> None:
    rng = np.random.default_rng(1)
    noise = lambda size: getattr(rng, law)(0.0, 5.0, size)  # noqa: E731
    trained, fresh = _sides(noise), _sides(noise)
    asked = {"delta": 0.0, "confidence": 0.9999}
    assert law_of_calls(*fresh) == found and law_of_calls(fresh[1]) == found
    assert law_of_calls(Block(fresh[1].rows.sum(1, keepdims=True), fresh[1].codes)) == "gaussian"
    moved = shift(trained, fresh, np.ones(1), **asked)
    assert (moved.law, moved.epsilon > 0) == (found, found == "gaussian")
    assert (tail_epsilon(trained, fresh, np.ones(1), **asked) > 0) == (found == "gaussian")

"""Thresholds in the number of records or clients are met, wherever they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from privdd.blackbox.budgets import CallBudget
from privdd.blackbox.input_sizes import SIZE_SHARE, pairs_at_revealing_sizes
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.mechanism import BlackBox

RNG = np.random.default_rng()


def _noised(x: np.ndarray) -> np.ndarray:
    return x.sum(0) + RNG.normal(0.0, 1.0, x.shape[1])


def _sizes(
    f: Callable[..., object], kind: str = "records", relation: str = "add_remove", **more: object
) -> set[int]:
    box = BlackBox(lambda: f, kind)
    clock = more.get("clock", CallBudget(20.0, 100_000))
    found = pairs_at_revealing_sizes(box, relation, more.get("tried", InputShapes()), clock)
    assert box.calls <= SIZE_SHARE * clock.calls + 100
    return {len(pair.present) if kind == "records" else len(pair.present[0]) for pair in found}


@pytest.mark.parametrize("least", [2, 5, 30, 100])
def test_nothing_below_a_number(least: int) -> None:
    assert _sizes(lambda x: _noised(x) if len(x) >= least else None) == {least}


def test_no_noise_up_to_four_and_another_shape_from_forty() -> None:
    def f(x: np.ndarray) -> np.ndarray:
        return x.sum(0) if len(x) <= 4 else _noised(x)[: 6 if len(x) < 40 else 5]

    assert _sizes(f) == {5, 40}


@pytest.mark.parametrize("relation", ["add_remove", "zero_out"])
def test_clients_that_sent_something_are_counted(relation: str) -> None:
    def f(updates: list[list[np.ndarray]], weights: list[int]) -> list[np.ndarray] | None:
        sent = [u for u in updates if any(a.any() for a in u)]
        return (
            [sum(parts) + RNG.normal(size=parts[0].shape) for parts in zip(*sent)]
            if len(sent) >= 7
            else None
        )

    assert _sizes(f, "aggregate", relation) == {7}


def test_nothing_is_added_for_sound_noise_for_refusals_or_without_time() -> None:
    def refuses(x: np.ndarray) -> np.ndarray:
        if len(x) < 5:
            raise ValueError("five rows are needed")
        return _noised(x)

    below = lambda x: _noised(x) if len(x) >= 5 else None  # noqa: E731
    assert not _sizes(_noised) and not _sizes(refuses)
    assert not _sizes(below, clock=CallBudget(20.0, 100))

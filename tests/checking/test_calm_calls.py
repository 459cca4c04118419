"""Calm calls: noise whose scale is drawn anew for each call, against mechanisms whose epsilon is known."""

from __future__ import annotations

import numpy as np
import pytest

from attacks.epsilon import gaussian_epsilon
from privdd.checking.calm_calls import calm_shift
from privdd.checking.sampled import Block
from privdd.checking.shift_law import NOTHING
from tests.conformance.parts import DELTA, sigma

M = 24
AXIS = np.full(M, M**-0.5)


def _sides(n: int, rng: np.random.Generator, small: float, share: float) -> tuple[Block, Block]:
    """Noise of 1 or ``small`` times sigma(4), one scale for a whole call."""
    found = []
    for shift in (1.0, 0.0):
        scale = sigma(4.0) * np.where(rng.random(n) < share, small, 1.0)
        rows = scale[:, None] * rng.normal(size=(n, M)) + shift * AXIS
        found.append(Block(rows[:, None], ["f"] * n))
    return found[0], found[1]


def test_small_noise_in_half_of_the_calls_is_found_and_not_overstated() -> None:
    rng = np.random.default_rng(0)
    found = calm_shift(_sides(10_000, rng, 0.5, 0.5), _sides(30_000, rng, 0.5, 0.5), AXIS, delta=DELTA, confidence=0.99)
    assert found.law == "gaussian" and 4.2 < found.epsilon < gaussian_epsilon(2 / sigma(4.0), DELTA)


def test_noise_of_one_scale_has_no_calm_calls() -> None:
    rng = np.random.default_rng(1)
    assert calm_shift(_sides(5000, rng, 1.0, 0.5), _sides(5000, rng, 1.0, 0.5), AXIS, delta=DELTA, confidence=0.99) is NOTHING


def test_larger_noise_in_some_calls_keeps_the_statement() -> None:
    """Never less than what sigma(4) gives: no bound is above 4."""
    rng = np.random.default_rng(2)
    sides = [(_sides(4000, rng, 3.0, 0.5), _sides(12_000, rng, 3.0, 0.5)) for _ in range(20)]
    found = [calm_shift(one, two, AXIS, delta=DELTA, confidence=0.99).epsilon for one, two in sides]
    assert max(found) <= 4.0 and max(found) > 1.0


@pytest.mark.parametrize("axis", [None, np.ones(4) / 2])
def test_releases_of_another_width_are_left_alone(axis: np.ndarray | None) -> None:
    rng = np.random.default_rng(3)
    assert calm_shift(_sides(200, rng, 0.5, 0.5), _sides(200, rng, 0.5, 0.5), axis, delta=DELTA, confidence=0.99) is NOTHING

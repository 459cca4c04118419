"""Noise that ends where normal noise goes on: its cost from the residuals of all numbers, and
nothing for sound noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from privdd.blackbox.budgets import BoundLevel
from privdd.blackbox.claims import gaussian_mu
from privdd.blackbox.stages.noise_tails import (
    TailResiduals,
    ends_early,
    noise_end_epsilon,
    tail_residuals,
)
from privdd.blackbox.transcripts import Transcripts

DELTA = 1e-5
NUMBERS = 20
MU = gaussian_mu(2.0, DELTA)
RNG = np.random.default_rng(5)
Noise = Callable[[tuple[int, int]], np.ndarray]


def of_uniforms(shape: tuple[int, int]) -> np.ndarray:
    return np.sum([RNG.uniform(-1, 1, shape) for _ in range(4)], axis=0) * math.sqrt(3 / 4)


def seen(
    noise: Noise, n: int, shift: float = MU, end: float = math.inf, moved: int = 1
) -> TailResiduals | None:
    """What ``n`` releases a side show; end: of the range that releases are cut to."""
    a = noise((n, NUMBERS))
    b = noise((n, NUMBERS))
    a[:, :moved] += shift
    sides = [np.clip(x, -end, end)[:, None] for x in (a, b)]
    return tail_residuals(Transcripts(sides[0], [""] * n), Transcripts(sides[1], [""] * n))


def epsilon(noise: Noise, n: int = 25_000, **more: float) -> float:
    # type: ignore[arg-type]
    trained = seen(noise, n // 2, **more)
    fresh = seen(noise, n, **more)
    return (
        noise_end_epsilon(trained, fresh, BoundLevel(DELTA, 0.9998)) if trained and fresh else 0.0
    )


def test_a_sum_of_four_uniforms_costs_more_than_the_normal_law_that_it_is_taken_for() -> None:
    assert epsilon(of_uniforms) > 2.1
    assert (
        epsilon(of_uniforms, shift=0.1 * MU) < 0.5
    )  # a smaller share is beyond the end than delta allows


@pytest.mark.parametrize(
    "noise",
    [
        RNG.standard_normal,
        lambda shape: RNG.laplace(0, MU / 2, shape),  # epsilon 2
        lambda shape: np.round(RNG.normal(0, 6, shape)) * (1 / 6),  # discrete
        lambda shape: stats.truncnorm.rvs(-5, 5, size=shape, random_state=RNG),
    ],
)
def test_sound_noise_of_epsilon_two_is_not_accused(noise: Noise) -> None:
    assert epsilon(noise) < 2.1


def test_what_is_cut_to_a_public_range_is_not_accused() -> None:
    """The end of the range does not move with the record: a bound from the shift alone would have
    no limit."""
    assert (
        epsilon(RNG.standard_normal, end=3.6) < 2.1 and epsilon(RNG.standard_normal, end=1.5) < 2.1
    )


def test_an_end_of_the_noise_is_noticed_and_that_of_normal_noise_is_not() -> None:
    assert ends_early(of_uniforms((1000, NUMBERS)).ravel())
    assert not any(ends_early(RNG.standard_normal((1000, NUMBERS)).ravel()) for _ in range(20))


def test_numbers_that_share_their_noise_are_not_counted_twice() -> None:
    def shared(shape: tuple[int, int]) -> np.ndarray:
        return np.repeat(RNG.standard_normal((shape[0], 1)), shape[1], axis=1)

    found = seen(shared, 2000)
    assert found is not None and len(found.pooled) == 2 * 2000

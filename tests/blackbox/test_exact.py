"""Exact epsilon by a tested law and a known shift: against closed forms, by which 2/3 and 3/2 of
the shift are told apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attacks.tradeoff import gaussian_epsilon
from privdd.api import check
from privdd.blackbox.budgets import BoundLevel
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.law_recognition import has_law, lattice_step
from privdd.blackbox.shift_bounds import composed_epsilon, exact_shift_bound
from privdd.blackbox.transcripts import PairSample, Transcripts

RNG = np.random.default_rng(31)
LEVEL = 0.9999


def _geometric(size):
    q = 1 - math.exp(-0.7)
    return RNG.geometric(q, size) - RNG.geometric(q, size)


def _sample(noise, shift, calls=1, n=6000):
    moved = np.tile(np.asarray(shift, float), (calls, 1))
    block = lambda count, by: Transcripts(noise((count, *moved.shape)) + by, ["f"] * count)  # noqa: E731
    sides = [(block(count, moved), block(count, 0 * moved)) for count in (n // 2, n)]
    return PairSample(sides[0], sides[1], None, moved)


@pytest.mark.parametrize(
    ("noise", "shift", "calls", "delta", "law", "true"),
    [
        (lambda s: RNG.normal(0, 1, s), [1.0, 0.0], 1, 1e-5, "gaussian", 4.3772),
        (
            lambda s: RNG.normal(0, 1, s),
            [0.6, 0.8],
            4,
            1e-5,
            "gaussian",
            gaussian_epsilon(2.0, 1e-5),
        ),
        (lambda s: RNG.normal(0, [1.0, 4.0], s), [0.6, 3.2], 1, 1e-5, "gaussian", 4.3772),
        (lambda s: RNG.laplace(0, 1, s), [1.0, 0.5], 1, 0.0, "laplace", 1.5),
        (lambda s: RNG.laplace(0, 2, s), [1.0], 1, 1e-3, "laplace", 0.5 + 2 * math.log1p(-1e-3)),
        (_geometric, [1, 2], 1, 0.0, "discrete laplace", 2.1),
        (lambda s: np.rint(RNG.normal(0, 3, s)), [3, 0], 1, 1e-5, "discrete gaussian", 4.3772),
    ],
)
def test_the_closed_form_lies_between_the_bound_and_a_little_more(
    noise, shift, calls, delta, law, true
) -> None:
    found = exact_shift_bound(_sample(noise, shift, calls), BoundLevel(delta, LEVEL))
    assert found is not None and (found.law, found.exact) == (law, True)
    assert found.epsilon <= true <= 1.1 * found.epsilon and found.about == pytest.approx(
        true, rel=0.05
    )


def test_noise_that_is_shared_counts_by_its_covariance() -> None:
    """Two numbers with noise of correlation 0.96: moved the same way they tell as much as one;
    against each other, more."""
    mixing = np.array([[1.0, 0.2], [1.0, -0.2]])
    noise = lambda size: RNG.normal(0, 1, size) @ mixing.T  # noqa: E731
    for shift in ([0.5, 0.5], [0.1, -0.1]):
        mu = float(np.linalg.norm(np.linalg.solve(mixing, shift)))
        found = exact_shift_bound(_sample(noise, shift), BoundLevel(1e-5, LEVEL))
        assert found is not None and found.mu == pytest.approx(mu, rel=0.05) and found.mu_low < mu


def test_nothing_is_said_of_other_noise_or_without_a_shift() -> None:
    for noise in (
        lambda s: RNG.logistic(0, 1, s),
        lambda s: RNG.uniform(-1, 1, s),
        lambda s: RNG.integers(-5, 6, s),
    ):
        assert exact_shift_bound(_sample(noise, [1]), BoundLevel(1e-5, LEVEL)) is None
    sample = _sample(lambda s: RNG.normal(0, 1, s), [0.0])
    assert exact_shift_bound(sample, BoundLevel(1e-5, LEVEL)) is None
    assert (
        exact_shift_bound(PairSample(sample.trained, sample.fresh), BoundLevel(1e-5, LEVEL)) is None
    )


def test_a_law_on_a_lattice_is_told_from_its_neighbours() -> None:
    block = Transcripts(_geometric((6000, 1, 3)), ["f"] * 6000)
    assert has_law("discrete laplace", block, 18_000)
    assert not has_law("discrete gaussian", block, 18_000) and not has_law("laplace", block, 18_000)
    halves = Transcripts(block.rows / 2, block.codes)  # the lattice may have any step
    assert has_law("discrete laplace", halves, 18_000)


def test_a_lattice_of_tenths_is_seen_through_the_rounding_of_floats() -> None:
    """Tenths about two middles are not the same floats; and noise of one value, or of many, is on
    no lattice."""
    tenths = np.round(RNG.laplace(0, 1, (6000, 2)), 1) - [0.3, 0.7]
    assert len(np.unique(tenths)) > len(np.unique(np.rint(tenths * 10))) and lattice_step(
        tenths
    ) == pytest.approx(0.1)
    assert (
        lattice_step(np.array([[0.1 + 0.2], [0.3]] * 50))
        == lattice_step(RNG.normal(0, 1, (6000, 1)))
        == 0.0
    )


def test_many_different_steps_lower_a_composition_by_little() -> None:
    steps = np.linspace(0.1, 2.0, 100)
    assert composed_epsilon("laplace", steps, np.ones(100), 1.0, 0.0) == pytest.approx(105.0)
    few = composed_epsilon("laplace", np.full(100, 1.0), np.ones(100), 1.0, 1e-5)
    assert few < 100 and composed_epsilon("laplace", steps, np.ones(100), 1.0, 1e-5) < 105
    assert composed_epsilon("laplace", np.array([2.0]), np.ones(1), 1.0, 1e-3) == pytest.approx(
        2 + 2 * math.log1p(-1e-3), abs=1e-3
    )


def _classic(update, epsilon, clip=1.0):
    """The textbook noise, which is right below epsilon 8 and too little at 10: the true figure
    there is 10.39."""
    size = math.sqrt(sum(float(np.sum(np.square(a))) for a in update))
    std = clip * math.sqrt(2 * math.log(1.25 / 1e-5)) / epsilon
    return [a * min(1.0, clip / max(size, 1e-12)) + RNG.normal(0, std, a.shape) for a in update]


def test_an_excess_of_four_in_a_hundred_is_refuted_and_the_figure_is_printed() -> None:
    asked = {
        "kind": "update",
        "max_calls": 40_000,
        "seconds": 20.0,
        "tried": InputShapes(structures=(((4, 4),),)),
    }
    found = check(
        _classic, stated={"epsilon": 10.0, "delta": 1e-5}, args={"epsilon": 10.0}, **asked
    )
    assert (
        found.refuted
        and found.exact is not None
        and found.exact.epsilon == pytest.approx(10.39, abs=0.15)
    )
    assert "by this law and this shift" in found.says
    found = check(_classic, stated={"epsilon": 8.0, "delta": 1e-5}, args={"epsilon": 8.0}, **asked)
    assert (
        not found.refuted and found.exact is not None and found.exact.shift_l2 == pytest.approx(1.0)
    )
    assert found.exact.low < 7.92 and "by its gaussian law and the largest shift" in found.says


@pytest.mark.parametrize(("widths", "numbers"), [(4.0, 1), (20.0, 12), (20.0, 64)])
def test_a_shift_far_beyond_discrete_noise_has_the_epsilon_of_its_sum(
    widths: float, numbers: int
) -> None:
    """By the privacy loss of one number on the lattice; of several, which add up to a wider shift,
    by the normal law."""
    width = 50.0
    found = composed_epsilon(
        "discrete gaussian", np.full(numbers, widths), np.full(numbers, width), 1.0, 1e-5
    )
    true = gaussian_epsilon(widths * math.sqrt(numbers), 1e-5)
    if numbers == 1:
        k = np.arange(-1000.0, 1000.0)
        chance = np.exp(-(k**2) / (2 * width**2))
        chance /= chance.sum()
        shift = widths * width
        loss = (shift**2 - 2 * k * shift) / (2 * width**2)  # ln of p(k) / p(k - shift)
        excess = [
            np.sum(chance * np.maximum(0.0, 1 - np.exp(epsilon - loss)))
            for epsilon in (0.99 * true, 1.01 * true)
        ]
        assert excess[0] > 1e-5 > excess[1]
    assert 0.98 * true < found <= true

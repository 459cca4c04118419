"""Moments of a sampled record against the exact accountant, and against mechanisms whose epsilon is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from privdd.blackbox.noise_laws import epsilon_from_moments, sampled_epsilon, two_point_epsilon, two_point_law
from privdd.blackbox.transcripts import BoundLevel, PairSample, Transcripts
from tests.conformance.parts import DELTA, poisson_epsilon, sigma

AXIS = np.array([1.0, 0.0])


@pytest.mark.parametrize(("q", "z"), [(0.1, 1.26), (0.02, 0.8), (0.5, 2.0)])
def test_two_points_cost_what_the_accountant_says(q: float, z: float) -> None:
    assert two_point_epsilon(0.0, 1.0, q, z, DELTA) == pytest.approx(poisson_epsilon(q, z), rel=0.01)


def test_one_point_is_the_gaussian_mechanism() -> None:
    assert two_point_epsilon(0.0, 1.0, 1.0, sigma(1.0), DELTA) == pytest.approx(1.0, rel=0.01)


def test_no_law_with_the_same_moments_costs_less() -> None:
    """Laws of X on five points of either sign, in turn: epsilon of the two points is below theirs."""
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 16.0, 3000)
    for _ in range(100):
        places, shares = rng.uniform(-1.5, 1.5, 5), rng.dirichlet(np.ones(5))
        mean = float(shares @ places)
        low, high, q = two_point_law(mean, *(float(shares @ (places - mean) ** k) for k in (2, 3)))
        assert [(1 - q) * low**k + q * high**k for k in (1, 2, 3)] == pytest.approx([shares @ places**k for k in (1, 2, 3)])
        beyond = (shares[:, None] * ndtr(places[:, None] - t)).sum(0) - DELTA
        exact = float((np.log(np.maximum(beyond, 1e-300)) - log_ndtr(-t)).max())
        assert two_point_epsilon(low, high, q, 1.0, DELTA) <= max(0.0, exact) + 1e-3


def test_a_record_that_is_mirrored_at_times_is_not_accused() -> None:
    """Signs drawn after the clip keep the sensitivity. Two moments alone would give {0, 2} here, and an epsilon above the true one."""
    rng, true = np.random.default_rng(4), two_point_epsilon(-1.0, 1.0, 0.75, 2.0, DELTA)
    found = []
    for n in (6000, 20_000, 100_000):
        for _ in range(10):
            y = rng.normal(0.0, 2.0, n) + np.where(rng.random(n) < 0.25, -1.0, 1.0)
            found.append(epsilon_from_moments(y, rng.normal(0.0, 2.0, n), DELTA, 0.01))
    assert max(found) < true < two_point_epsilon(0.0, 2.0, 0.25, 2.0, DELTA) and min(found) > 0.5


def _blocks(q: float, z: float, n: int, rng: np.random.Generator, noise: str = "normal") -> tuple[Transcripts, Transcripts]:
    drawn = [getattr(rng, noise)(0.0, z, (n, 1, 2)) for _ in range(2)]
    drawn[0][:, 0] += (rng.random(n) < q)[:, None] * AXIS
    return Transcripts(drawn[0], ["f"] * n), Transcripts(drawn[1], ["f"] * n)


def test_twice_the_rate_is_seen_and_the_stated_one_is_not_accused() -> None:
    rng = np.random.default_rng(1)
    z, error = 1.26, 1e-2  # epsilon 1 at a rate of a tenth
    level = BoundLevel(DELTA, 1 - error)
    found = [sampled_epsilon(PairSample(_blocks(0.2, z, 20_000, rng), _blocks(0.2, z, 150_000, rng), AXIS), level) for _ in range(3)]
    assert min(found) > 1.05 and max(found) < poisson_epsilon(0.2, z)
    true = poisson_epsilon(0.1, z)
    found = [sampled_epsilon(PairSample(_blocks(0.1, z, 5000, rng), _blocks(0.1, z, 20_000, rng), AXIS), level) for _ in range(60)]
    assert sum(value > true for value in found) <= 3  # 0.6 are expected at most


def test_other_noise_gives_nothing() -> None:
    rng = np.random.default_rng(2)
    level = BoundLevel(DELTA, 0.99)
    assert sampled_epsilon(PairSample(_blocks(0.2, 1.0, 5000, rng, "laplace"), _blocks(0.2, 1.0, 20_000, rng, "laplace"), AXIS), level) == 0.0


def test_a_fall_of_the_mean_gives_nothing() -> None:
    rng = np.random.default_rng(3)
    assert epsilon_from_moments(rng.normal(-1.0, 1.0, 5000), rng.normal(0.0, 1.0, 5000), DELTA, 0.01) == 0.0

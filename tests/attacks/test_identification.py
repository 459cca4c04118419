"""Bounds from identification: the exact null against simulation, and bounds against known
mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from attacks.identification import (
    best_cosine_threshold,
    bound_from_cosines,
    bound_from_identifications,
    log_chance_of_cosine,
)
from attacks.tradeoff import gaussian_epsilon


@pytest.mark.parametrize("dimensions", [2, 3, 10, 100])
def test_chance_of_a_cosine_is_that_of_student_t(dimensions: int) -> None:
    """t = c sqrt(m-1) / sqrt(1-c^2) has Student's law with m - 1 degrees of freedom for a uniform
    direction."""
    for c in (-0.5, 0.0, 0.1, 0.4, 0.9):
        t = c * math.sqrt(dimensions - 1) / math.sqrt(1 - c * c)
        expected = stats.t.logsf(t, dimensions - 1)
        assert float(log_chance_of_cosine(np.array(c), dimensions)) == pytest.approx(
            expected, rel=1e-9, abs=1e-12
        )


def test_chances_beyond_the_smallest_float_are_bounded_from_above() -> None:
    far = log_chance_of_cosine(np.array([0.999, 0.99999, 1.0]), 1000)
    assert (np.diff(far) < 0).all() and far[0] < -2000 and np.isfinite(far).all()
    with pytest.raises(ValueError, match="dimensions=1"):
        log_chance_of_cosine(np.array(0.5), 1)


def games(mu: float, count: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """Cosines of a Gaussian mechanism in m dimensions whose record shifts by mu."""
    s = rng.standard_normal((count, m))
    s /= np.linalg.norm(s, axis=1, keepdims=True)
    o = mu * s + rng.standard_normal((count, m))
    return np.einsum("ij,ij->i", o, s) / np.linalg.norm(o, axis=1)


def test_bounds_of_a_gaussian_mechanism_stay_below_its_epsilon() -> None:
    rng = np.random.default_rng(0)
    above = 0
    best = 0.0
    true = gaussian_epsilon(2.0, 1e-5)
    for _ in range(40):
        at = best_cosine_threshold(games(2.0, 300, 12, rng), 12, 1e-5)
        bound = bound_from_cosines(games(2.0, 1000, 12, rng), at, 12, delta=1e-5, confidence=0.95)
        above = above + (bound > true)
        best = max(best, bound)
    assert above == 0 and best > 0.3 * true


def test_no_noise_shows_more_than_ln_n_and_a_null_shows_nothing() -> None:
    rng = np.random.default_rng(1)
    assert bound_from_cosines(np.full(50, 0.9999), 0.99, 20, delta=1e-5, confidence=0.99) > 30
    null = [
        bound_from_cosines(games(0.0, 200, 8, rng), 0.3, 8, delta=0.0, confidence=0.9) > 0.05
        for _ in range(200)
    ]
    assert np.mean(null) < 0.1


def test_identification_among_many_against_the_binomial() -> None:
    """10 of 10 right among K: the smallest chance that is not refuted is alpha^(1/10)."""
    bound = bound_from_identifications(10, 10, math.log(1e6), delta=0.0, confidence=0.95)
    assert bound == pytest.approx(math.log(0.05**0.1 * 1e6))
    assert bound_from_identifications(0, 10, 5.0, delta=1e-5, confidence=0.95) == 0
    assert bound_from_identifications(
        1, 1, math.log(1e6), delta=0.01, confidence=0.95
    ) == pytest.approx(math.log((0.05 - 0.01) * 1e6))
    with pytest.raises(ValueError, match="won=11"):
        bound_from_identifications(11, 10, 5.0, delta=0.0, confidence=0.95)

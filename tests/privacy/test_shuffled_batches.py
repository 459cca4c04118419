"""Bounds for batches that are no Poisson samples, against closed forms, Monte Carlo and another
library."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import privdd.privacy.batch_bounds as module
from privdd.privacy.accounting import epsilon
from privdd.privacy.batch_bounds import bound_batch_epsilon

DELTA = 1e-5
SCHEMES = ("shuffled", "balls_in_bins")


@pytest.fixture(autouse=True)
def without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALLOCATION_LIBRARY", "a_library_that_nobody_has")


@pytest.mark.parametrize("sampling", SCHEMES)
@pytest.mark.parametrize("epochs", [1, 4])
def test_one_batch_is_the_gaussian_mechanism(sampling: str, epochs: int) -> None:
    exact = dpa.get_epsilon_gaussian(1.5 / math.sqrt(epochs), DELTA)
    assert bound_batch_epsilon(
        1.5, DELTA, batches=1, epochs=epochs, sampling=sampling
    ) == pytest.approx((exact, exact), rel=1e-9)


def test_poisson_batches_have_the_accountants_epsilon() -> None:
    event = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0)), 20)
    assert (
        bound_batch_epsilon(1.0, DELTA, batches=10, epochs=2, sampling="poisson")
        == (epsilon(event, DELTA),) * 2
    )


@pytest.mark.parametrize("sampling", SCHEMES)
def test_lower_bounds_are_below_upper_ones_and_grow_with_epochs(sampling: str) -> None:
    lows = []
    for epochs in (1, 5):
        low, high = bound_batch_epsilon(0.8, DELTA, batches=20, epochs=epochs, sampling=sampling)
        assert 0 < low <= high <= dpa.get_epsilon_gaussian(0.8 / math.sqrt(epochs), DELTA) + 1e-9
        lows.append(low)
    assert lows[1] > 1.2 * lows[0]


@pytest.mark.parametrize(
    ("sampling", "present", "absent"), [("shuffled", 2.0, 1.0), ("balls_in_bins", 1.0, 0.0)]
)
def test_the_lower_bound_of_an_epoch_is_no_lower_than_that_of_one_threshold(
    sampling: str, present: float, absent: float
) -> None:
    """Chua et al. (2024), the event that some coordinate is at least c."""
    z = 0.6
    count = 30

    def by_threshold(c: float) -> float:
        p, q = (
            -math.expm1(norm.logcdf((c - s) / z) + (count - 1) * norm.logcdf(c / z))
            for s in (present, absent)
        )
        return -math.log((p - DELTA) / q) if p > DELTA else 0.0

    best = -minimize_scalar(by_threshold, bounds=(0.5, 4.5), method="bounded").fun
    low, _ = bound_batch_epsilon(z, DELTA, batches=count, sampling=sampling)
    assert best > 3 and low >= best - 5e-3


@pytest.mark.parametrize("sampling", SCHEMES)
def test_bounds_agree_with_monte_carlo(sampling: str) -> None:
    """delta at both bounds, by sampling the pairs themselves: the whole likelihood ratio, not the
    largest coordinate."""
    z = 1.0
    count = 4
    delta = 0.01
    n = 400_000
    present, absent = module.SHIFTS[sampling]
    rng = np.random.default_rng(0)
    low, high = bound_batch_epsilon(z, delta, batches=count, sampling=sampling)

    def log_density(w: np.ndarray, shift: float) -> np.ndarray:
        return np.logaddexp.reduce(shift * w - shift * shift / 2, axis=1) - math.log(count)

    deltas = []
    for first, second in ((present, absent), (absent, present)):
        w = rng.standard_normal((n, count))
        w[:, 0] += first
        loss = log_density(w, first) - log_density(w, second)
        deltas.append([np.mean(np.maximum(0, 1 - np.exp(e - loss))) for e in (low, high)])
    at_low, at_high = np.max(deltas, axis=0)
    error = 3 * math.sqrt(delta / n)
    assert at_high <= delta + error and at_low >= delta - error
    assert at_low < 3 / 2 * delta  # the bound is near: 2/3 of it would not be
    w = rng.standard_normal((n, count))
    w[:, 0] += present
    loss = log_density(w, present) - log_density(w, absent)
    assert np.mean(np.maximum(0, 1 - np.exp(2 / 3 * low - loss))) > 3 / 2 * delta


def test_shuffled_batches_can_cost_more_than_poisson_ones() -> None:
    """What Chua et al. (2024) found: an epsilon accounted for Poisson batches does not hold for
    shuffled ones."""
    poisson, _ = bound_batch_epsilon(0.6, DELTA, batches=1000, sampling="poisson")
    assert bound_batch_epsilon(0.6, DELTA, batches=1000)[0] > 1.5 * poisson


@pytest.mark.extra("PLD_accounting")
def test_balls_in_bins_bounds_are_those_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = bound_batch_epsilon(1.0, 1e-3, batches=3, sampling="balls_in_bins")
    monkeypatch.setattr(module, "ALLOCATION_LIBRARY", "PLD_accounting")
    low, high = bound_batch_epsilon(1.0, 1e-3, batches=3, sampling="balls_in_bins")
    assert high <= 1.05 * low and wide[0] <= high and wide[1] >= low and 0.5 * low < wide[0]


@pytest.mark.parametrize(
    "bad",
    [
        {"noise_multiplier": 0.0},
        {"delta": 0.0},
        {"batches": 0},
        {"epochs": 0},
        {"sampling": "cyclic"},
    ],
    ids=str,
)
def test_bad_values_are_refused(bad: dict) -> None:
    given = {"noise_multiplier": 1.0, "delta": DELTA, "batches": 2, **bad}
    with pytest.raises(ValueError, match=next(iter(bad)).split("_")[0]):
        bound_batch_epsilon(given.pop("noise_multiplier"), given.pop("delta"), **given)

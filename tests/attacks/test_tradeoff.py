"""Tests of a whole trade-off curve: levels by exact enumeration, power, and the point that is
chosen."""

import math

import numpy as np
import pytest
from scipy.stats import beta, binom, norm

from attacks.epsilon import gaussian
from attacks.tradeoff import (
    approximate_dp,
    curve_test,
    error_rate_limits,
    gaussian_dp,
    largest_refuted_scale,
    most_testable_point,
)


def gaussians(scale):
    return gaussian_dp(scale)


def test_limits_are_clopper_and_pearson_s_for_numbers_and_for_arrays():
    fpr, fnr = error_rate_limits([70, 0, 100], [30, 100, 0], [5, 0, 100], [95, 100, 0], 0.95)
    assert fpr.tolist() == pytest.approx([beta.ppf(0.975, 6, 95), beta.ppf(0.975, 1, 100), 1.0])
    assert fnr.tolist() == pytest.approx([beta.ppf(0.975, 31, 70), 1.0, beta.ppf(0.975, 1, 100)])


@pytest.mark.parametrize("curve", [gaussian_dp(1.0), approximate_dp(1.0, 1e-3), gaussian_dp(0.0)])
@pytest.mark.parametrize("alpha", [0.02, 0.2, 0.6])
def test_a_mechanism_on_its_curve_is_refuted_with_at_most_the_stated_chance(curve, alpha):
    """Summed over all counts of 60 + 60 trials, for a test that sits exactly on the curve."""
    n = 60
    rates = (alpha, float(curve(alpha)))
    weights = np.outer(*(binom.pmf(np.arange(n + 1), n, rate) for rate in rates))
    fp, fn = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    fpr, fnr = error_rate_limits(n - fn, fn, fp, n - fp, 0.95)
    assert weights[fnr < curve(fpr)].sum() <= 0.05


def test_half_the_noise_is_refuted_where_epsilon_at_1e_5_shows_nothing():
    rng = np.random.default_rng(0)
    point = most_testable_point(gaussians(1.0), 300)
    # ln P/Q of mu 2
    inside = 2 * rng.normal(size=300) + 2.0
    outside = 2 * rng.normal(size=300) - 2.0
    found = curve_test(inside, outside, gaussians, threshold=point.threshold)
    assert found.refuted and 1.3 < found.scale < 2.0
    honest = curve_test(
        rng.normal(size=300) + 0.5, rng.normal(size=300) - 0.5, gaussians, threshold=point.threshold
    )
    assert not honest.refuted and 0.6 < honest.scale < 1.0


def test_the_scale_of_a_gaussian_family_is_the_mu_of_nasr_and_others():
    inside = np.array([1.0] * 250 + [0.0] * 50)
    outside = np.array([1.0] * 40 + [0.0] * 260)
    found = curve_test(inside, outside, gaussians, threshold=0.5)
    from attacks.tradeoff import gaussian_epsilon

    assert gaussian_epsilon(found.scale, 1e-5) == pytest.approx(
        gaussian(250, 50, 40, 260, delta=1e-5), rel=1e-2
    )
    assert found.fnr < gaussian_dp(found.scale - 0.01)(found.fpr) and not found.fnr < gaussian_dp(
        found.scale + 0.01
    )(found.fpr)


def test_a_scale_is_above_one_exactly_where_the_curve_is_refuted():
    for truth in (0.0, 1e-3, 0.999, 1.0, 1.0 + 1e-9, 1.7, 900.0):
        scale = largest_refuted_scale(lambda s, truth=truth: s < truth, truth > 1)
        assert (scale > 1) == (truth > 1) and scale <= max(truth, math.nextafter(1, 2)) + 1e-12


def test_the_chosen_point_of_a_gaussian_is_its_middle_and_that_of_a_kink_is_the_kink():
    middle = most_testable_point(gaussian_dp(2.0), 1000)
    assert middle.alpha == pytest.approx(norm.cdf(-1), abs=0.08) and abs(middle.threshold) < 1.0
    # randomised response: both errors 1 / (1 + e)
    kink = most_testable_point(approximate_dp(1.0, 0.0), 1000)
    assert kink.alpha == pytest.approx(1 / (1 + math.e), abs=0.02) and abs(kink.threshold) < 1.0


def test_the_threshold_has_the_type_one_error_that_it_is_chosen_for():
    for mu in (0.5, 1.0, 3.0):
        point = most_testable_point(gaussian_dp(mu), 600)
        assert norm.sf((point.threshold + mu * mu / 2) / mu) == pytest.approx(point.alpha, rel=0.02)


@pytest.mark.parametrize(
    "sides", [([], [0.0]), ([0.0], []), ([float("nan")], [0.0]), ([[0.0]], [0.0])]
)
def test_scores_without_meaning_are_refused(sides):
    with pytest.raises(ValueError, match="scores"):
        curve_test(*sides, gaussians, threshold=0.0)

"""The accountant's trade-off curve against closed forms, its own epsilons, and simulated tests."""

import math

import dp_accounting as dpa
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from privdd.privacy.accounting import epsilon, epsilon_at
from privdd.privacy.events import UnsupportedEvent
from privdd.privacy.trade_off import trade_off

ALPHAS = np.array([0.0, 1e-6, 1e-3, 0.02, 0.1, 0.3, 0.5, 0.8, 0.99, 1.0])
SAMPLED = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.2, dpa.GaussianDpEvent(1.0)), 5)


def laplace_curve(b, alpha):
    """Laplace noise of scale b, sensitivity 1 (Dong, Roth and Su 2022, appendix): thresholds on the
    output."""
    e = math.exp(-1 / b)
    return np.where(
        alpha < e / 2,
        1 - alpha / e,
        np.where(alpha <= 0.5, e / (4 * np.maximum(alpha, 1e-300)), e * (1 - alpha)),
    )


def test_gaussians_have_their_closed_form():
    event = dpa.ComposedDpEvent(
        [dpa.GaussianDpEvent(2.0), dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.0), 3)]
    )
    mu = math.sqrt(1 / 4 + 3)
    np.testing.assert_allclose(
        trade_off(event)(ALPHAS), norm.cdf(norm.ppf(1 - ALPHAS) - mu), atol=1e-12
    )
    double = trade_off(event, relation="replace")(ALPHAS)
    np.testing.assert_allclose(double, trade_off(event, scale=2.0)(ALPHAS))


@pytest.mark.parametrize("b", [0.5, 1.0, 3.0])
def test_laplace_is_met_closely_and_never_exceeded(b):
    found = trade_off(dpa.LaplaceDpEvent(b))(ALPHAS)
    exact = laplace_curve(b, ALPHAS)
    assert (found <= exact + 1e-9).all()
    np.testing.assert_allclose(found, exact, atol=4e-3)


def test_one_sampled_gaussian_is_below_both_of_its_orders_and_near_the_lower_one():
    """P = (1 - q) N(0, 1) + q N(mu, 1) against Q = N(0, 1), whose likelihood ratio grows with the
    output."""
    q = 0.3
    mu = 2.0
    found = trade_off(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(1 / mu)))
    cdf = lambda x: (1 - q) * norm.cdf(x) + q * norm.cdf(x - mu)  # noqa: E731
    for alpha in (0.01, 0.1, 0.3, 0.6):
        one = cdf(norm.isf(alpha))  # reject Q for large outputs
        other = norm.sf(brentq(lambda x, a=alpha: cdf(x) - a, -9, 9))  # reject P for small ones
        assert min(one, other) - 0.02 < float(found(alpha)) <= min(one, other) + 1e-9


def test_curves_agree_with_the_accountants_epsilons():
    """delta(eps) = 1 + sup over alpha of (-f(alpha) - e^eps alpha), for a symmetric f (Dong et al.,
    Proposition 2.13)."""
    curve = trade_off(SAMPLED)
    alpha = np.concatenate([np.geomspace(1e-9, 0.5, 4000), 1 - np.geomspace(0.5, 1e-9, 4000)])
    for delta in (1e-2, 1e-5):
        eps = epsilon(SAMPLED, delta)
        assert float(np.max(1 - curve(alpha) - math.exp(eps) * alpha)) == pytest.approx(
            delta, rel=0.1
        )


def test_a_curve_is_convex_falling_and_its_own_inverse():
    curve = trade_off(SAMPLED)
    alpha = np.linspace(0.001, 0.999, 400)
    beta = curve(alpha)
    assert (
        (np.diff(beta) <= 0).all()
        and (np.diff(beta, 2) >= -1e-12).all()
        and (beta <= 1 - alpha).all()
    )
    np.testing.assert_allclose(curve(beta), alpha, atol=1e-9)


def test_a_larger_scale_is_less_private_and_its_epsilon_is_that_of_less_noise():
    curves = [trade_off(SAMPLED, scale=s)(0.2) for s in (0.5, 1.0, 1.5)]
    assert curves[0] > curves[1] > curves[2]
    louder = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.2, dpa.GaussianDpEvent(0.5)), 5)
    assert epsilon_at(SAMPLED, 1e-5, relation="add_remove", scale=2.0) == pytest.approx(
        epsilon(louder, 1e-5), rel=2e-3
    )
    assert epsilon_at(SAMPLED, 1e-5, relation="add_remove", scale=0.0) == 0.0


def test_the_extremes_and_what_has_no_curve():
    assert trade_off(dpa.NonPrivateDpEvent())(ALPHAS).tolist() == [0.0] * len(ALPHAS)
    np.testing.assert_allclose(trade_off(dpa.NoOpDpEvent())(ALPHAS), 1 - ALPHAS, atol=1e-12)
    with pytest.raises(UnsupportedEvent):
        trade_off(dpa.PoissonSampledDpEvent(0.5, dpa.LaplaceDpEvent(1.0)))
    with pytest.raises(ValueError, match="scale"):
        trade_off(SAMPLED, scale=0.0)
    with pytest.raises(ValueError, match="relation"):
        trade_off(SAMPLED, relation="neighbours")

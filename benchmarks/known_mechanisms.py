"""Mechanisms whose epsilon is known exactly: what audits are audited with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import dp_accounting as dpa
import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from attacks.tradeoff import Curve, approximate_dp, gaussian_dp, gaussian_epsilon
from privdd.privacy.trade_off import trade_off

DELTA = 1e-5
# of the sampled Gaussian: rate, and shift in units of its noise
Q = 0.3
MU = 2.0


@dataclass(frozen=True)
class Known:
    """draw(member (...) bool, rng) -> ln P/Q of one release each, which is the best score there is.

    epsilon: exact at DELTA; curve: its exact trade-off, or one proven to lie below; planned: (mu,
        q) where a tilted certificate has a plan for it.
    """

    name: str
    epsilon: float
    draw: Callable[[np.ndarray, np.random.Generator], np.ndarray]
    curve: Curve
    planned: tuple[float, float] | None = None


def mechanisms() -> list[Known]:
    laplace = trade_off(dpa.LaplaceDpEvent(1.0))
    sampled = trade_off(dpa.PoissonSampledDpEvent(Q, dpa.GaussianDpEvent(1 / MU)))
    return [
        Known(
            "null", 0.0, lambda member, rng: 1e-9 * rng.normal(size=member.shape), gaussian_dp(0.0)
        ),
        Known(
            "Gaussian, mu 1", gaussian_epsilon(1.0, DELTA), _gaussian, gaussian_dp(1.0), (1.0, 1.0)
        ),
        # sensitivity and scale 1: delta = 1 - e^((epsilon - 1) / 2)
        Known("Laplace, epsilon 1", 1 + 2 * math.log1p(-DELTA), _laplace, laplace),
        Known(
            f"Gaussian, mu {MU:g}, sampled at {Q:g}",
            sampled_epsilon(Q, MU, DELTA),
            _sampled,
            sampled,
            (MU, Q),
        ),
        # delta = (e - e^epsilon) / (1 + e)
        Known(
            "randomised response, 1",
            math.log(math.e - DELTA * (1 + math.e)),
            _response,
            approximate_dp(1.0, 0.0),
        ),
    ]


def sampled_epsilon(q: float, mu: float, delta: float) -> float:
    """Epsilon at ``delta`` of one release N(mu coin, 1), coin with chance q: the larger of both
    orders, closed form."""

    def excess(eps: float) -> float:
        add = (math.exp(eps) - 1 + q) / q  # P > e^eps Q where exp(mu x - mu^2/2) is above this
        x = math.log(add) / mu + mu / 2
        one = (1 - q) * norm.sf(x) + q * norm.sf(x - mu) - math.exp(eps) * norm.sf(x)
        rest = (
            math.exp(-eps) - 1 + q
        ) / q  # Q > e^eps P where it is below this, nowhere if negative
        other = 0.0
        if rest > 0:
            x = math.log(rest) / mu + mu / 2
            other = norm.cdf(x) - math.exp(eps) * ((1 - q) * norm.cdf(x) + q * norm.cdf(x - mu))
        return max(one, other) - delta

    return float(brentq(excess, 0.0, 50.0))


def _gaussian(member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return member + rng.normal(size=member.shape) - 0.5


def _laplace(member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    # not |x| - |x - 1|, whose rounding differs with the low bits of x: a threshold at 1 then tells
    # 1 + noise from noise
    return np.clip(2 * (member + rng.laplace(size=member.shape)) - 1, -1.0, 1.0)


def _sampled(member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    x = MU * (member & (rng.random(member.shape) < Q)) + rng.normal(size=member.shape)
    return np.logaddexp(math.log1p(-Q), math.log(Q) + MU * x - MU * MU / 2)


def _response(member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    told = member ^ (rng.random(member.shape) < 1 / (1 + math.e))
    return np.where(told, 1.0, -1.0)

"""The accountant's whole trade-off curve: type I error -> the least type II error of any test for one record.

What the accountant proves is a profile delta(epsilon) that bounds both orders of every pair of neighbours; the curve
that goes with it is the supremum of the curves of all its (epsilon, delta(epsilon)) (Dong, Roth and Su 2022,
Proposition 2.12). Privacy losses are rounded upwards and only some epsilons are used, so the curve errs towards less
privacy: a mechanism that meets its accounting is on it or above. It is its own inverse. A composition of Gaussians has
its closed form instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dp_accounting as dpa
import numpy as np
from scipy.special import ndtr, ndtri

from privdd.core.setting_types import Relation
from privdd.privacy.accounting import COARSE, check_delta, check_relation, composed_loss, epsilon_of
from privdd.privacy.events import Tally, tally_events

TradeOff = Callable[[Any], Any]  # type I errors in [0, 1], floats or arrays -> type II errors
CURVE_LINES = 600  # lines that make up a curve; half of them for each order of the errors
SMALLEST = 1e-9  # delta of the largest of their epsilons
ROUGH = 0.02  # discretisation of the loss that finds that epsilon
MOST = 500.0  # and where it overflows
GRID = 2e4  # at most about so many steps of the discretised loss


def trade_off(event: dpa.DpEvent, *, relation: Relation = "add_remove", scale: float = 1.0) -> TradeOff:
    """The curve of one event under ``relation``.

    scale: of the sensitivity, so 2 is the curve of the same releases with half the noise. Raises UnsupportedEvent for
    what this accountant cannot bound and ValueError for a bad relation or scale.
    """
    check_relation(relation)
    if not 0 < scale < math.inf:
        raise ValueError(f"scale={scale!r}: a finite number above 0 is needed")
    total = scale_tally(tally_events([(event, 1)]), scale)
    if not total.private:
        return lambda alpha: np.zeros_like(np.asarray(alpha, dtype=np.float64))
    if not total.poisson and not total.laplace:
        mu = math.sqrt(total.squared_mu) * (2 if relation == "replace" else 1)
        return lambda alpha: ndtr(ndtri(1 - np.asarray(alpha, dtype=np.float64)) - mu)
    return _curve_from_losses(total, relation)


def scale_tally(total: Tally, scale: float) -> Tally:
    """The releases for a record that counts ``scale`` times."""
    return Tally(
        private=total.private,
        squared_mu=total.squared_mu * scale * scale,
        poisson=tuple(((q, z / scale), n) for (q, z), n in total.poisson),
        laplace=tuple((b / scale, n) for b, n in total.laplace),
    )


def epsilon_at(event: dpa.DpEvent, delta: float, *, relation: Relation, scale: float) -> float:
    """The epsilon at ``delta`` of the member ``scale`` of the event's family, rounded upwards; 0 at scale 0."""
    check_delta(delta)
    total = scale_tally(tally_events([(event, 1)]), scale) if scale else Tally()
    if (not total.poisson and not total.laplace) or not total.private:
        return epsilon_of(total, delta, relation=relation, accountant="pld")
    return float(composed_loss(total, relation, COARSE).get_epsilon_for_delta(delta))


def _curve_from_losses(total: Tally, relation: Relation) -> TradeOff:
    rough = composed_loss(total, relation, ROUGH).get_epsilon_for_delta(SMALLEST)
    largest = float(rough) if math.isfinite(rough) else MOST
    loss = composed_loss(total, relation, max(COARSE, largest / GRID))
    epsilons = np.linspace(0.0, largest, CURVE_LINES // 2)
    deltas = np.asarray(loss.get_delta_for_epsilon(list(epsilons)), dtype=np.float64)
    with np.errstate(over="ignore"):
        up, down = np.exp(epsilons), np.exp(-epsilons)
    # beta >= 1 - delta - e^epsilon alpha, and the same with the errors exchanged
    heights = np.concatenate([[0.0], 1 - deltas, down * (1 - deltas)])
    slopes = np.concatenate([[0.0], np.minimum(up, 1e300), down])

    def evaluate_curve(alpha: Any) -> Any:
        at = np.asarray(alpha, dtype=np.float64)
        return np.max(heights - slopes * at[..., None], axis=-1)

    return evaluate_curve

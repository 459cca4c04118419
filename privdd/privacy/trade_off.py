"""The trade-off curve of an event: the least type II error of any test, by its type I error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa
import numpy as np
from scipy.special import ndtr, ndtri

from privdd.core.units import Relation
from privdd.privacy.accounting import COARSE, check_relation, composed_loss
from privdd.privacy.events import Tally, scale_tally, tally_events

TradeOff = Callable[[Any], Any]  # type I errors in [0, 1], floats or arrays -> type II errors


@dataclass(frozen=True)
class _CurveGrid:
    """How a curve is made of lines.

    Attributes:
        lines: in all, half of them for each order of the errors.
        least_delta: delta of the largest epsilon that gives a line.
        rough_interval: of the loss that finds that epsilon.
        overflow_epsilon: taken if that loss overflows.
        points: of the loss that gives the lines, about, at most.
    """

    lines: int = 600
    least_delta: float = 1e-9
    rough_interval: float = 0.02
    overflow_epsilon: float = 500.0
    points: float = 2e4


def trade_off(
    event: dpa.DpEvent, *, relation: Relation = "add_remove", scale: float = 1.0
) -> TradeOff:
    """The trade-off curve of one event for one record.

    What the accountant proves is a profile delta(epsilon) that bounds both orders of every pair of
    neighbours. The curve that goes with it is the supremum of those of all its
    (epsilon, delta(epsilon)) (Dong, Roth and Su 2022, Propositions 2.5 and 2.12):

        f(alpha) = max over epsilon of 0, 1 - delta - exp(epsilon) alpha,
                   exp(-epsilon) (1 - delta - alpha).

    Privacy losses are rounded upwards and only some epsilons are used, so the curve errs towards
    less privacy: a mechanism that meets its accounting is on it or above. It is its own inverse. A
    composition of Gaussians has its closed form, Phi(Phi^-1(1 - alpha) - mu), instead.

    Args:
        event: what is released.
        relation: which data sets are neighbours.
        scale: of the sensitivity: 2 gives the curve of the same releases with half the noise.

    Returns:
        A function from type I errors to type II errors.

    Raises:
        UnsupportedEvent: for what this accountant cannot bound.
        ValueError: for a bad relation or scale.
    """
    check_relation(relation)
    if not 0 < scale < math.inf:
        raise ValueError(f"scale={scale!r}: a finite number above 0 is needed")
    total = scale_tally(tally_events([(event, 1)]), scale)
    if not total.private:
        return lambda alpha: np.zeros_like(np.asarray(alpha, dtype=np.float64))
    if total.is_gaussian:
        mu = math.sqrt(total.squared_mu) * (2 if relation == "replace" else 1)
        return lambda alpha: ndtr(ndtri(1 - np.asarray(alpha, dtype=np.float64)) - mu)
    return _curve_from_losses(total, relation)


def _curve_from_losses(total: Tally, relation: Relation) -> TradeOff:
    """The supremum of the lines of ``trade_off``, of epsilons evenly spaced from 0."""
    grid = _CurveGrid()
    rough = composed_loss(total, relation, grid.rough_interval)
    largest = float(rough.get_epsilon_for_delta(grid.least_delta))
    if not math.isfinite(largest):
        largest = grid.overflow_epsilon
    loss = composed_loss(total, relation, max(COARSE, largest / grid.points))
    epsilons = np.linspace(0.0, largest, grid.lines // 2)
    deltas = np.asarray(loss.get_delta_for_epsilon(list(epsilons)), dtype=np.float64)
    with np.errstate(over="ignore"):
        growth = np.exp(epsilons)
        decay = np.exp(-epsilons)
    heights = np.concatenate([[0.0], 1 - deltas, decay * (1 - deltas)])
    slopes = np.concatenate([[0.0], np.minimum(growth, 1e300), decay])

    def evaluate_curve(alpha: Any) -> Any:
        errors = np.asarray(alpha, dtype=np.float64)
        return np.max(heights - slopes * errors[..., None], axis=-1)

    return evaluate_curve

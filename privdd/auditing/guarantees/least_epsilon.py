"""The least that a composition can cost: a lower bound by dp-accounting alone, which shares no code with our accounting.

Privacy losses are rounded down where an accountant rounds them up, so that no sound accountant states less. Gaussians
by themselves are exact (Balle and Wang 2018, Theorem 8).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

import dp_accounting as dpa
from dp_accounting.pld import privacy_loss_distribution as pld

LOST = 0.01  # share of epsilon, about, that rounding down may cost: half a step of the grid in each release
FINE, COARSE = 1e-5, 1e-1
CUT = 1e-14  # of delta, and more than what dp-accounting cuts off as infinite loss of one kind of release (1e-15)
NEIGHBOURS = {
    "add_remove": dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero_out": dpa.NeighboringRelation.REPLACE_SPECIAL,
    "replace": dpa.NeighboringRelation.REPLACE_ONE,
}


def at_least(events: Iterable[tuple[dpa.DpEvent, int]], delta: float, relation: str) -> float:
    """A lower bound of epsilon of so many of each event; 0 where one of them is of no law that is known here."""
    parts = [part for event, count in events for part in _flat(event, count)]
    if not all(_known(event) for event, _ in parts):
        return 0.0
    width = 2.0 if relation == "replace" else 1.0
    squared = math.fsum(n * (width / e.noise_multiplier) ** 2 for e, n in parts if isinstance(e, dpa.GaussianDpEvent))
    others = [(event, n) for event, n in parts if not isinstance(event, dpa.GaussianDpEvent)]
    if not others:
        return float(dpa.get_epsilon_gaussian(1 / math.sqrt(squared), delta)) if squared else 0.0
    step = min(COARSE, max(FINE, 2 * LOST * _size(parts, width) / sum(n for _, n in others)))
    reached = delta + CUT * (len(others) + 1)  # for a delta below what is cut off, the losses would seem infinite
    try:
        return _rounded_down(squared, others, relation, step).get_epsilon_for_delta(min(reached, 1.0))
    except OverflowError:  # losses beyond what floating point holds: nothing is said of them
        return 0.0


def _flat(event: dpa.DpEvent, count: int) -> Iterator[tuple[dpa.DpEvent, int]]:
    if isinstance(event, dpa.SelfComposedDpEvent):
        yield from _flat(event.event, event.count * count)
    elif isinstance(event, dpa.ComposedDpEvent):
        for part in event.events:
            yield from _flat(part, count)
    else:
        yield event, count


def _known(event: dpa.DpEvent) -> bool:
    sampled = isinstance(event, dpa.PoissonSampledDpEvent) and isinstance(event.event, dpa.GaussianDpEvent)
    return sampled or isinstance(event, dpa.GaussianDpEvent | dpa.LaplaceDpEvent)


def _size(parts: Iterable[tuple[dpa.DpEvent, int]], width: float) -> float:
    """About the epsilon to be found: that of the central limit (Dong et al. 2022, Corollary 5.4), delta about 1e-5."""
    mu2 = math.fsum(n * _mu2(event, width) for event, n in parts)
    return mu2 / 2 + 4 * math.sqrt(mu2)


def _mu2(event: dpa.DpEvent, width: float) -> float:
    if not isinstance(event, dpa.PoissonSampledDpEvent):
        return (width / event.noise_multiplier) ** 2  # type: ignore[attr-defined]
    z, q = event.event.noise_multiplier / width, event.sampling_probability  # type: ignore[attr-defined]
    return min(1 / z**2, q**2 * math.expm1(min(1 / z**2, 500.0)))


def _rounded_down(
    squared: float, others: Iterable[tuple[dpa.DpEvent, int]], relation: str, step: float
) -> pld.PrivacyLossDistribution:
    grid: dict[str, Any] = {
        "value_discretization_interval": step,
        "pessimistic_estimate": False,
        "use_connect_dots": False,
    }
    width = 2.0 if relation == "replace" else 1.0
    made = [pld.from_gaussian_mechanism(1 / math.sqrt(squared), **grid)] if squared else []
    for event, count in others:
        if isinstance(event, dpa.LaplaceDpEvent):
            one = pld.from_laplace_mechanism(event.noise_multiplier, sensitivity=width, **grid)
        else:
            one = pld.from_gaussian_mechanism(
                event.event.noise_multiplier, sampling_prob=event.sampling_probability,
                neighboring_relation=NEIGHBOURS[relation], **grid,
            )  # fmt: skip
        made.append(one.self_compose(count))
    return reduce(lambda one, other: one.compose(other), made)

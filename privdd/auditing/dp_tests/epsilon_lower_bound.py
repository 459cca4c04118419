"""A lower bound of the epsilon of a composition, by dp-accounting alone.

It shares no code with ``privdd.privacy.accounting``, so that a fault there shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import dp_accounting as dpa
from dp_accounting.pld import privacy_loss_distribution as pld

# Share of epsilon, about, that rounding down may cost: half a step of the grid in each release.
ROUNDING_SHARE = 0.01
FINEST_GRID = 1e-5
COARSEST_GRID = 1e-1
# Of delta; dp-accounting cuts off 1e-15 of one kind of release as infinite loss.
TRUNCATED_MASS = 1e-14
LARGEST_EXPONENT = 500.0  # beyond which exp overflows
NEIGHBOURING_RELATIONS = {
    "add_remove": dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero_out": dpa.NeighboringRelation.REPLACE_SPECIAL,
    "replace": dpa.NeighboringRelation.REPLACE_ONE,
}
EventCounts = list[tuple[dpa.DpEvent, int]]


def epsilon_lower_bound(
    events: Iterable[tuple[dpa.DpEvent, int]], delta: float, relation: str
) -> float:
    """A lower bound of epsilon of so many of each event.

    delta(epsilon) = E_P[(1 - exp(epsilon - L))_+] of the convolved privacy losses L, which are
    rounded down to a grid where an accountant rounds them up: no sound accountant states less.
    Gaussians alone have mu^2 = sum n (w / z)^2, w the change of one record, and are exact (Balle
    and Wang 2018, Theorem 8).

    Args:
        events: (event, how often).
        delta: in (0, 1).
        relation: which data sets are neighbours.

    Returns:
        Epsilon; 0 if one of the events is of no law that is known here.
    """
    parts = [part for event, count in events for part in _flatten_event(event, count)]
    if not all(_is_known_event(event) for event, _ in parts):
        return 0.0
    width = 2.0 if relation == "replace" else 1.0
    squared_mu = math.fsum(
        count * (width / event.noise_multiplier) ** 2
        for event, count in parts
        if isinstance(event, dpa.GaussianDpEvent)
    )
    rest = [(event, count) for event, count in parts if not isinstance(event, dpa.GaussianDpEvent)]
    if not rest:
        if not squared_mu:
            return 0.0
        return float(dpa.get_epsilon_gaussian(1 / math.sqrt(squared_mu), delta))
    releases = sum(count for _, count in rest)
    finest = 2 * ROUNDING_SHARE * _approximate_epsilon(parts, width) / releases
    step = min(COARSEST_GRID, max(FINEST_GRID, finest))
    # Below what is cut off, the losses would seem infinite.
    reached = delta + TRUNCATED_MASS * (len(rest) + 1)
    try:
        loss = _compose_rounded_down(squared_mu, rest, relation, step)
        return loss.get_epsilon_for_delta(min(reached, 1.0))
    except OverflowError:  # losses beyond what floating point holds: nothing is said of them
        return 0.0


def _flatten_event(event: dpa.DpEvent, count: int) -> Iterator[tuple[dpa.DpEvent, int]]:
    if isinstance(event, dpa.SelfComposedDpEvent):
        yield from _flatten_event(event.event, event.count * count)
    elif isinstance(event, dpa.ComposedDpEvent):
        for part in event.events:
            yield from _flatten_event(part, count)
    else:
        yield event, count


def _is_known_event(event: dpa.DpEvent) -> bool:
    # By class, not by ``noise_law``: the accounting is tested here and must not decide; and the
    # losses of a law are rounded up there, which gives no lower bound.
    if isinstance(event, dpa.PoissonSampledDpEvent):
        return isinstance(event.event, dpa.GaussianDpEvent)
    return isinstance(event, dpa.GaussianDpEvent | dpa.LaplaceDpEvent)


def _approximate_epsilon(parts: EventCounts, width: float) -> float:
    """About the epsilon to be found, mu^2 / 2 + 4 mu: that of the central limit (Dong, Roth and Su
    2022, Corollary 5.4), at delta about 1e-5. It only sets the grid."""
    squared_mu = math.fsum(count * _squared_mu(event, width) for event, count in parts)
    return squared_mu / 2 + 4 * math.sqrt(squared_mu)


def _squared_mu(event: dpa.DpEvent, width: float) -> float:
    """(w / z)^2; of a sample the central limit's q^2 (exp(w^2 / z^2) - 1), if that is less."""
    if not isinstance(event, dpa.PoissonSampledDpEvent):
        return (width / event.noise_multiplier) ** 2  # type: ignore[attr-defined]
    z = event.event.noise_multiplier / width  # type: ignore[attr-defined]
    q = event.sampling_probability
    return min(1 / z**2, q**2 * math.expm1(min(1 / z**2, LARGEST_EXPONENT)))


def _compose_rounded_down(
    squared_mu: float, rest: EventCounts, relation: str, step: float
) -> pld.PrivacyLossDistribution:
    grid: dict[str, Any] = {
        "value_discretization_interval": step,
        "pessimistic_estimate": False,
        "use_connect_dots": False,
    }
    width = 2.0 if relation == "replace" else 1.0
    losses = []
    if squared_mu:
        losses.append(pld.from_gaussian_mechanism(1 / math.sqrt(squared_mu), **grid))
    for event, count in rest:
        if isinstance(event, dpa.LaplaceDpEvent):
            loss = pld.from_laplace_mechanism(event.noise_multiplier, sensitivity=width, **grid)
        else:
            loss = pld.from_gaussian_mechanism(
                event.event.noise_multiplier,  # type: ignore[attr-defined]
                sampling_prob=event.sampling_probability,  # type: ignore[attr-defined]
                neighboring_relation=NEIGHBOURING_RELATIONS[relation],
                **grid,
            )
        losses.append(loss.self_compose(count))
    composed = losses[0]
    for loss in losses[1:]:
        composed = composed.compose(loss)
    return composed

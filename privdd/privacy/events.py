"""Privacy events: dp-accounting's ``DpEvent`` to and from the ledger's JSON, and their normal form.

A noise multiplier is noise scale over the change that adding or removing one record can cause (L2 for
Gaussian, L1 for Laplace). Only events with a proof behind them have a JSON form: Poisson sampling has
one, shuffling and fixed-size batches have none and are never written down as Poisson.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa


class UnsupportedEvent(ValueError):
    """An event, or an event under a relation, for which no sound accounting is known here."""


@dataclass(frozen=True)
class Tally:
    """A composition reduced to what accounting needs; order is gone, equal events are merged.

    private: False where anything is released without noise; squared_mu: sum of 1/z**2 over all
    Gaussian releases (a composition of Gaussians is one Gaussian, Dong et al. 2019, Corollary 3.3);
    poisson: ((q, z), count) sorted; laplace: (b, count) sorted.
    """

    private: bool = True
    squared_mu: float = 0.0
    poisson: tuple[tuple[tuple[float, float], int], ...] = ()
    laplace: tuple[tuple[float, int], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing that touches data was released."""
        return self.private and self.squared_mu == 0 and not self.poisson and not self.laplace

    @property
    def is_gaussian(self) -> bool:
        """Whether all noise is full-batch Gaussian noise."""
        return not self.poisson and not self.laplace

    def covers(self, other: Tally) -> bool:
        """Whether this holds every release of ``other``, so that its epsilon is at least as large."""
        if not self.private:
            return True
        sampled, laplace = dict(self.poisson), dict(self.laplace)
        return (
            other.private
            and self.squared_mu >= other.squared_mu
            and all(sampled.get(key, 0) >= n for key, n in other.poisson)
            and all(laplace.get(scale, 0) >= n for scale, n in other.laplace)
        )


def _check_number(value: Any, what: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
        raise UnsupportedEvent(f"{what}={value!r}: a number in ({low}, {high}] is needed")
    return float(value)


MOST_TIMES = 2**53  # of one event, all repetitions multiplied: more cannot be counted in floats
DEEPEST = 50  # events inside each other


def _check_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TIMES:
        shown = str(value) if not isinstance(value, int) or abs(value) <= MOST_TIMES else "a number of more digits"
        raise UnsupportedEvent(f"count={shown}: an integer from 0 to {MOST_TIMES} is needed")
    return value


MAX_MULTIPLIER = 1.7e308  # the largest finite multiplier
LEAST_NOISE, MOST_NOISE = 1e-100, 1e100  # beyond these, squares overflow: below is no noise, above is taken as this


def event_to_json(event: dpa.DpEvent) -> dict[str, Any]:
    """The JSON form of an event, as in ledger.json.

    Raises UnsupportedEvent for any other kind of event and for numbers without meaning.
    """
    match event:
        case dpa.NoOpDpEvent():
            return {"type": "none"}
        case dpa.NonPrivateDpEvent():
            return {"type": "non_private"}
        case dpa.GaussianDpEvent() | dpa.LaplaceDpEvent():
            kind = "gaussian" if isinstance(event, dpa.GaussianDpEvent) else "laplace"
            return {
                "type": kind,
                "noise_multiplier": _check_number(event.noise_multiplier, "noise_multiplier", 0, MAX_MULTIPLIER),
            }
        case dpa.PoissonSampledDpEvent():
            q = _check_number(event.sampling_probability, "sampling_probability", 0, 1)
            return {"type": "poisson", "probability": q, "event": event_to_json(event.event)}
        case dpa.ComposedDpEvent():
            return {"type": "compose", "events": [event_to_json(e) for e in event.events]}
        case dpa.SelfComposedDpEvent():
            return {"type": "repeat", "count": _check_count(event.count), "event": event_to_json(event.event)}
    raise UnsupportedEvent(f"{type(event).__name__} has no accounting here: use Gaussian, Laplace or Poisson events")


EVENT_FIELDS = {
    "none": set(),
    "non_private": set(),
    "gaussian": {"noise_multiplier"},
    "laplace": {"noise_multiplier"},
    "poisson": {"probability", "event"},
    "compose": {"events"},
    "repeat": {"count", "event"},
}


def event_from_json(form: Any, depth: int = 0) -> dpa.DpEvent:
    """The event behind a JSON form. Raises UnsupportedEvent for unknown types, fields or numbers, and for deep nesting."""
    if depth > DEEPEST:
        raise UnsupportedEvent(f"event: more than {DEEPEST} inside each other")
    kind = form.get("type") if isinstance(form, Mapping) else None
    if not isinstance(kind, str) or kind not in EVENT_FIELDS or set(form) != EVENT_FIELDS[kind] | {"type"}:
        raise UnsupportedEvent(
            f"event {form!r}: allowed are " + ", ".join(sorted(EVENT_FIELDS)) + " with their own fields"
        )
    if kind in ("gaussian", "laplace"):
        z = _check_number(form["noise_multiplier"], "noise_multiplier", 0, MAX_MULTIPLIER)
        return dpa.GaussianDpEvent(z) if kind == "gaussian" else dpa.LaplaceDpEvent(z)
    if kind == "poisson":
        return dpa.PoissonSampledDpEvent(
            _check_number(form["probability"], "probability", 0, 1), event_from_json(form["event"], depth + 1)
        )
    if kind == "repeat":
        return dpa.SelfComposedDpEvent(event_from_json(form["event"], depth + 1), _check_count(form["count"]))
    if kind == "compose":
        if not isinstance(form["events"], list):
            raise UnsupportedEvent(f"compose.events={form['events']!r}: a list is needed")
        return dpa.ComposedDpEvent([event_from_json(e, depth + 1) for e in form["events"]])
    return dpa.NoOpDpEvent() if kind == "none" else dpa.NonPrivateDpEvent()


def tally_events(events: Iterable[tuple[dpa.DpEvent, int]]) -> Tally:
    """The normal form of a composition of (event, how often).

    Raises UnsupportedEvent as ``event_to_json`` does, and for Poisson sampling of anything but Gaussians.
    """
    leaves: Counter[tuple[Any, ...]] = Counter()
    for event, times in events:
        _collect_leaves(event_to_json(event), _check_count(times), leaves)
    leaves = _bound_noise(leaves)
    gaussian = math.fsum(n / (leaf[1] * leaf[1]) for leaf, n in sorted(leaves.items()) if leaf[0] == "gaussian")
    return Tally(
        private=("non_private",) not in leaves,
        squared_mu=gaussian,
        poisson=tuple(sorted(((k[1], k[2]), n) for k, n in leaves.items() if k[0] == "poisson")),
        laplace=tuple(sorted((k[1], n) for k, n in leaves.items() if k[0] == "laplace")),
    )


def _bound_noise(leaves: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """The leaves with noise that arithmetic can square; a changed leaf costs more than before, never less."""
    bounded: Counter[tuple[Any, ...]] = Counter()
    for leaf, n in leaves.items():
        if leaf[0] == "non_private" or leaf[-1] < LEAST_NOISE:
            bounded[("non_private",)] += n
        else:
            bounded[(*leaf[:-1], min(leaf[-1], MOST_NOISE))] += n
    return bounded


def _collect_leaves(form: Mapping[str, Any], times: int, leaves: Counter[tuple[Any, ...]]) -> None:
    kind = form["type"]
    if times == 0 or kind == "none":
        return
    if kind == "non_private":
        leaves[("non_private",)] += times
    elif kind == "compose":
        for part in form["events"]:
            _collect_leaves(part, times, leaves)
    elif kind == "repeat":
        _collect_leaves(form["event"], _check_count(times * form["count"]), leaves)
    elif kind == "poisson":
        _collect_sampled(form["probability"], form["event"], times, leaves)
    else:
        leaves[(kind, form["noise_multiplier"])] += times


def _collect_sampled(q: float, form: Mapping[str, Any], times: int, leaves: Counter[tuple[Any, ...]]) -> None:
    """Gaussians on one sample are one Gaussian on it; PLD accountants refuse them unmerged."""
    found: Counter[tuple[Any, ...]] = Counter()
    _collect_leaves(form, 1, found)
    inner = _bound_noise(found)
    if ("non_private",) in inner:
        leaves[("non_private",)] += times
    elif any(leaf[0] != "gaussian" for leaf in inner):
        raise UnsupportedEvent("poisson: only Gaussian releases of one sample can be accounted")
    elif q == 1:
        for leaf, n in inner.items():
            leaves[leaf] += times * n
    elif len(inner) == 1 and sum(inner.values()) == 1:
        leaves[("poisson", q, next(iter(inner))[1])] += times
    elif inner:
        mu = math.sqrt(math.fsum(n / (leaf[1] * leaf[1]) for leaf, n in sorted(inner.items())))
        leaves[("poisson", q, 1 / mu)] += times

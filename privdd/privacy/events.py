"""Privacy events: their JSON form in the ledger, and the normal form of a composition.

Events are dp-accounting's, or those of a law in ``privdd.privacy.noise_laws``. Only those with a
proof behind them have a form in the ledger's JSON: Poisson sampling has one; shuffling and
fixed-size batches have none, and are never written down as Poisson. A noise multiplier z is the
noise scale over the change that adding or removing one record can cause (L2 for Gaussian, L1 for
Laplace noise).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa

from privdd.privacy.noise_laws import NOISE_LAWS, noise_law
from privdd.privacy.noise_laws.law import UnsupportedEvent

MOST_TIMES = 2**53  # of one event, all repetitions multiplied: more cannot be counted in floats
DEEPEST = 50  # events inside each other
MAX_MULTIPLIER = 1.7e308  # the largest finite multiplier
# Beyond these, squares overflow. Less noise is taken as none, more as this much.
LEAST_NOISE = 1e-100
MOST_NOISE = 1e100
EVENT_FIELDS: dict[str, set[str]] = {
    "none": set(),
    "non_private": set(),
    "poisson": {"probability", "event"},
    "compose": {"events"},
    "repeat": {"count", "event"},
    **{name: {"noise_multiplier"} for name in NOISE_LAWS},
}
NON_PRIVATE = ("non_private",)
Leaves = Counter[tuple[Any, ...]]  # (kind, its numbers ...) -> how often


@dataclass(frozen=True)
class Tally:
    """A composition reduced to what accounting needs; order is gone, equal events are merged.

    Attributes:
        private: False if anything is released without noise.
        squared_mu: mu^2 = sum of 1 / z^2 over all Gaussian releases: a composition of Gaussians is
            one Gaussian (Dong, Roth and Su 2022, Corollary 3.3).
        poisson: ((q, z), count), sorted: Gaussian releases of a Poisson sample.
        other_laws: ((law, z), count), sorted: releases with noise of another law.
    """

    private: bool = True
    squared_mu: float = 0.0
    poisson: tuple[tuple[tuple[float, float], int], ...] = ()
    other_laws: tuple[tuple[tuple[str, float], int], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing that touches data was released."""
        return self.private and self.squared_mu == 0 and self.is_gaussian

    @property
    def is_gaussian(self) -> bool:
        """Whether all noise is full-batch Gaussian noise."""
        return not self.poisson and not self.other_laws

    def covers(self, other: Tally) -> bool:
        """Whether this holds every release of ``other``, so that its epsilon is at least as
        large."""
        if not self.private:
            return True
        sampled = dict(self.poisson)
        released = dict(self.other_laws)
        return (
            other.private
            and self.squared_mu >= other.squared_mu
            and all(sampled.get(key, 0) >= count for key, count in other.poisson)
            and all(released.get(key, 0) >= count for key, count in other.other_laws)
        )


def _check_number(value: Any, what: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
        raise UnsupportedEvent(f"{what}={value!r}: a number in ({low}, {high}] is needed")
    return float(value)


def _check_multiplier(value: Any) -> float:
    return _check_number(value, "noise_multiplier", 0, MAX_MULTIPLIER)


def check_count(value: Any) -> int:
    """The count itself. Raises UnsupportedEvent for any but an integer from 0 to ``MOST_TIMES``."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TIMES:
        is_long = isinstance(value, int) and abs(value) > MOST_TIMES
        count_text = "a number of more digits" if is_long else str(value)
        raise UnsupportedEvent(f"count={count_text}: an integer from 0 to {MOST_TIMES} is needed")
    return value


def add_tallies(first: Tally, second: Tally) -> Tally:
    """The composition of both."""
    poisson = Counter(dict(first.poisson))
    poisson.update(dict(second.poisson))
    other_laws = Counter(dict(first.other_laws))
    other_laws.update(dict(second.other_laws))
    return Tally(
        private=first.private and second.private,
        squared_mu=first.squared_mu + second.squared_mu,
        poisson=tuple(sorted(poisson.items())),
        other_laws=tuple(sorted(other_laws.items())),
    )


def event_to_json(event: dpa.DpEvent) -> dict[str, Any]:
    """The JSON form of an event, as in ledger.json.

    Raises:
        UnsupportedEvent: for any other kind of event, and for numbers without meaning.
    """
    law = noise_law(event)
    if law is not None:
        multiplier = _check_multiplier(event.noise_multiplier)  # type: ignore[attr-defined]
        return {"type": law.name, "noise_multiplier": multiplier}
    match event:
        case dpa.NoOpDpEvent():
            return {"type": "none"}
        case dpa.NonPrivateDpEvent():
            return {"type": "non_private"}
        case dpa.PoissonSampledDpEvent():
            q = _check_number(event.sampling_probability, "sampling_probability", 0, 1)
            return {"type": "poisson", "probability": q, "event": event_to_json(event.event)}
        case dpa.ComposedDpEvent():
            return {"type": "compose", "events": [event_to_json(part) for part in event.events]}
        case dpa.SelfComposedDpEvent():
            count = check_count(event.count)
            return {"type": "repeat", "count": count, "event": event_to_json(event.event)}
    raise UnsupportedEvent(
        f"{type(event).__name__} has no accounting here: use Gaussian, Laplace or Poisson events"
    )


def event_from_json(form: Any, depth: int = 0) -> dpa.DpEvent:
    """The event behind a JSON form.

    Raises:
        UnsupportedEvent: for unknown types, fields or numbers, and for deep nesting.
    """
    if depth > DEEPEST:
        raise UnsupportedEvent(f"event: more than {DEEPEST} inside each other")
    kind = _checked_kind(form)
    if kind in NOISE_LAWS:
        return NOISE_LAWS[kind].event(_check_multiplier(form["noise_multiplier"]))  # type: ignore[call-arg]
    if kind == "poisson":
        probability = _check_number(form["probability"], "probability", 0, 1)
        return dpa.PoissonSampledDpEvent(probability, event_from_json(form["event"], depth + 1))
    if kind == "repeat":
        inner = event_from_json(form["event"], depth + 1)
        return dpa.SelfComposedDpEvent(inner, check_count(form["count"]))
    if kind == "compose":
        if not isinstance(form["events"], list):
            raise UnsupportedEvent(f"compose.events={form['events']!r}: a list is needed")
        return dpa.ComposedDpEvent([event_from_json(part, depth + 1) for part in form["events"]])
    if kind == "none":
        return dpa.NoOpDpEvent()
    return dpa.NonPrivateDpEvent()


def _checked_kind(form: Any) -> str:
    """The type of a form that has just the fields of its type."""
    kind = form.get("type") if isinstance(form, Mapping) else None
    if isinstance(kind, str) and kind in EVENT_FIELDS and {*form} == EVENT_FIELDS[kind] | {"type"}:
        return kind
    allowed = ", ".join(sorted(EVENT_FIELDS))
    raise UnsupportedEvent(f"event {form!r}: allowed are {allowed} with their own fields")


def tally_events(events: Iterable[tuple[dpa.DpEvent, int]]) -> Tally:
    """The normal form of a composition.

    Args:
        events: (event, how often).

    Raises:
        UnsupportedEvent: as ``event_to_json`` does, and for Poisson sampling of anything but
            Gaussians.
    """
    leaves: Leaves = Counter()
    for event, times in events:
        _collect_leaves(event_to_json(event), check_count(times), leaves)
    leaves = _bound_noise(leaves)
    other_laws = NOISE_LAWS.keys() - {"gaussian"}
    return Tally(
        private=NON_PRIVATE not in leaves,
        squared_mu=_squared_mu(leaves),
        poisson=tuple(sorted((leaf[1:], n) for leaf, n in leaves.items() if leaf[0] == "poisson")),
        other_laws=tuple(sorted((leaf, n) for leaf, n in leaves.items() if leaf[0] in other_laws)),
    )


def _squared_mu(leaves: Leaves) -> float:
    """mu^2 = sum n / z^2 over the Gaussian leaves (Dong, Roth and Su 2022, Corollary 3.3)."""
    gaussian = [(leaf[1], n) for leaf, n in sorted(leaves.items()) if leaf[0] == "gaussian"]
    return math.fsum(n / (z * z) for z, n in gaussian)


def _bound_noise(leaves: Leaves) -> Leaves:
    """The leaves with noise that arithmetic can square; a changed leaf costs more than before,
    never less."""
    bounded: Leaves = Counter()
    for leaf, times in leaves.items():
        if leaf == NON_PRIVATE or leaf[-1] < LEAST_NOISE:
            bounded[NON_PRIVATE] += times
        else:
            bounded[(*leaf[:-1], min(leaf[-1], MOST_NOISE))] += times
    return bounded


def _collect_leaves(form: Mapping[str, Any], times: int, leaves: Leaves) -> None:
    kind = form["type"]
    if times == 0 or kind == "none":
        return
    if kind == "non_private":
        leaves[NON_PRIVATE] += times
    elif kind == "compose":
        for part in form["events"]:
            _collect_leaves(part, times, leaves)
    elif kind == "repeat":
        _collect_leaves(form["event"], check_count(times * form["count"]), leaves)
    elif kind == "poisson":
        _collect_sampled(form["probability"], form["event"], times, leaves)
    else:
        leaves[(kind, form["noise_multiplier"])] += times


def _collect_sampled(q: float, form: Mapping[str, Any], times: int, leaves: Leaves) -> None:
    """Gaussians on one sample are one Gaussian on it; PLD accountants refuse them unmerged."""
    sampled: Leaves = Counter()
    _collect_leaves(form, 1, sampled)
    inner = _bound_noise(sampled)
    if NON_PRIVATE in inner:
        leaves[NON_PRIVATE] += times
    elif any(leaf[0] != "gaussian" for leaf in inner):
        raise UnsupportedEvent("poisson: only Gaussian releases of one sample can be accounted")
    elif q == 1:
        for leaf, count in inner.items():
            leaves[leaf] += times * count
    elif len(inner) == 1 and sum(inner.values()) == 1:
        leaves[("poisson", q, next(iter(inner))[1])] += times
    elif inner:
        leaves[("poisson", q, 1 / math.sqrt(_squared_mu(inner)))] += times


def scale_tally(total: Tally, scale: float) -> Tally:
    """The releases for a record that counts ``scale`` times."""
    return Tally(
        private=total.private,
        squared_mu=total.squared_mu * scale * scale,
        poisson=tuple(((q, z / scale), count) for (q, z), count in total.poisson),
        other_laws=tuple(((law, z / scale), count) for (law, z), count in total.other_laws),
    )

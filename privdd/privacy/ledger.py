"""The ledger: every release of a run, append-only, and the epsilons that follow from it.

Per client and partition cell (``label:3``) the rows of that cell and the rows without a partition
are composed; the worst cell is the client's total, the worst client the federation's (records of
different clients are disjoint). Under replace, exchanging a record for one with another label
removes it from one cell and adds it to another; this costs no more than an exchange within the
worst cell. Post-processing rows cost nothing by
themselves: they point to the rows that they were computed from.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import dp_accounting as dpa

from privdd.core.units import UNITS, Relation
from privdd.privacy.accounting import (
    ACCOUNTANTS,
    Accountant,
    check_delta,
    check_relation,
    epsilon_of,
    smallest_bound,
)
from privdd.privacy.events import (
    Tally,
    UnsupportedEvent,
    event_from_json,
    event_to_json,
    tally_events,
)
from privdd.privacy.mechanism import LedgerRow

SCHEMA = 1  # of ledger.json
SERVER = -1  # the client number of rows that the server writes
# events without a mechanism behind them
UNPROTECTED_EVENTS = (dpa.NoOpDpEvent, dpa.NonPrivateDpEvent)
ROW_FIELDS = tuple(f.name for f in fields(LedgerRow))
RELEASE_KEYS = {"id", *ROW_FIELDS} - {"why"}  # of a row of ledger.json
# in most rows: kept once
SHARED_FIELDS = ("shape", "flags", "name", "surface", "visible_to", "why", "nonprivate_reason")


# partition cell, None outside of all cells -> its events, each with how often
EventsByCell = dict[str | None, list[tuple[dpa.DpEvent, int]]]


@dataclass(frozen=True, slots=True)
class Release(LedgerRow):
    """One numbered row (id = its position); ``post_of`` holds ids of earlier rows.

    flags: the side conditions of the proof; one false flag makes the release non-private. A flag
    ``unit:client`` or ``relation:zero_out`` names what the proof holds for.
    """

    id: int = -1

    def __post_init__(self) -> None:
        if self.id < 0 or any(not 0 <= of < self.id for of in self.post_of):
            raise ValueError(
                f"release id={self.id}, post_of={self.post_of}: ids of earlier releases are needed"
            )
        if self.count < 1:
            raise ValueError(f"release {self.id}: count={self.count}: an integer >= 1 is needed")
        event_to_json(self.event)
        broken = sorted(name for name, holds in self.flags.items() if not holds)
        if broken and not isinstance(self.event, dpa.NonPrivateDpEvent):
            object.__setattr__(self, "event", dpa.NonPrivateDpEvent())
            object.__setattr__(
                self, "nonprivate_reason", f"side conditions fail: {', '.join(broken)}"
            )

    @property
    def is_protected(self) -> bool:
        """A mechanism stands behind it: the row itself spends a finite epsilon."""
        return not isinstance(self.event, UNPROTECTED_EVENTS)


class Ledger:
    """Append-only; one neighbouring relation, one unit and one delta for all of it."""

    def __init__(
        self, relation: Relation = "add_remove", unit: str = "record", delta: float = 1e-5
    ) -> None:
        check_relation(relation)
        check_delta(delta)
        if unit not in UNITS:
            raise ValueError(f"unit={unit!r}: allowed are {', '.join(UNITS)}")
        self.relation: Relation = relation
        self.unit = unit
        self.delta = delta
        self._releases: list[Release] = []
        self._shared: dict[str, Any] = {}
        # (surfaces, client) -> the totals of the rows so far
        self._totals: dict[tuple[frozenset[str] | None, int | None], set[Tally]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the totals, which can be computed again."""
        return {**vars(self), "_totals": {}}

    def copy_rows(self) -> Ledger:
        """A ledger of the same rows, which rows can be appended to while this one stays as it
        is."""
        copied = Ledger(self.relation, self.unit, self.delta)
        copied._releases = list(self._releases)
        copied._shared = dict(self._shared)
        return copied

    @property
    def releases(self) -> tuple[Release, ...]:
        return tuple(self._releases)

    def __len__(self) -> int:
        return len(self._releases)

    def append(self, rows: Sequence[LedgerRow], *, absolute: bool = False) -> tuple[int, ...]:
        """Number the rows and keep them -> their ids.

        ``post_of`` counts from the first of these rows (what ``Channel.send`` writes) or, with
        ``absolute=True``, names ids of the ledger (what the server derives from many clients). All
        rows are kept or none. Raises ValueError for rows of another unit or relation,
        UnsupportedEvent for events that cannot be accounted.
        """
        first = len(self._releases)
        base = 0 if absolute else first
        releases = []
        for index, row in enumerate(rows):
            values = {name: getattr(row, name) for name in ROW_FIELDS}
            values["post_of"] = tuple(of + base for of in row.post_of)
            shared_fields: tuple[str, ...] = SHARED_FIELDS
            if isinstance(row.event, UNPROTECTED_EVENTS):
                shared_fields = (*SHARED_FIELDS, "event")
            for name in shared_fields:
                values[name] = self._shared.setdefault(f"{name}{values[name]}", values[name])
            releases.append(Release(**values, id=first + index))
            self._check_release(releases[-1])
        self._releases.extend(releases)
        self._totals.clear()
        return tuple(release.id for release in releases)

    def _check_release(self, release: Release) -> None:
        if not release.is_protected:
            return
        if release.flags.get("unit:client"):
            unit = "client"
        else:
            unit = "record"
        if unit != self.unit:
            raise ValueError(
                f"{release.name}: its mechanism protects a {unit}, this ledger's unit is "
                f"a {self.unit}"
            )
        if release.flags.get("relation:zero_out") and self.relation == "add_remove":
            raise ValueError(
                f"{release.name}: its count is public: privacy.relation=zero_out or "
                "replace is needed"
            )

    def closure(self, surfaces: Collection[str]) -> list[Release]:
        """Rows of these surfaces and all that they were computed from, in order."""
        wanted = {str(surface) for surface in surfaces}
        keep: set[int] = set()
        for release in reversed(self._releases):
            if release.surface in wanted or release.id in keep:
                keep.add(release.id)
                keep.update(release.post_of)
        return [self._releases[id_] for id_ in sorted(keep)]

    def behind(self, surfaces: Collection[str]) -> set[int]:
        """Ids of all rows of these surfaces and of those that they were computed from."""
        return {release.id for release in self.closure(surfaces)}

    def epsilon(
        self,
        delta: float | None = None,
        *,
        surfaces: Collection[str] | None = None,
        client: int | None = None,
        accountant: Accountant = "pld",
        relation: Relation | None = None,
    ) -> float:
        """Epsilon of one client's data, or of the worst client's, at ``delta`` (default: the
        ledger's).

        surfaces: only what these surfaces let out (and what they were computed from). Infinite
        where any of it is unprotected, or where this accountant has no bound under this relation (a
        warning says why). Raises ValueError for a relation other than the ledger's: add/remove and
        zero-out rows are accounted alike, but a proof for one is not a proof for the other.
        """
        if relation not in (None, self.relation):
            raise ValueError(
                f"relation={relation!r}: this ledger was written for {self.relation!r}"
            )
        if delta is None:
            delta = self.delta
        worst = 0.0
        for total in self.totals(surfaces=surfaces, client=client):
            try:
                value = epsilon_of(total, delta, relation=self.relation, accountant=accountant)
            except UnsupportedEvent as problem:
                warnings.warn(f"epsilon is reported as infinite: {problem}", stacklevel=2)
                value = math.inf
            worst = max(worst, value)
        return worst

    def epsilon_by_accountant(
        self, *, surfaces: Collection[str] | None = None, client: int | None = None
    ) -> dict[str, float]:
        """Accountant ("pld", "rdp") -> what ``epsilon`` says by it."""
        return {
            accountant: self.epsilon(surfaces=surfaces, client=client, accountant=accountant)
            for accountant in ACCOUNTANTS
        }

    def proven_epsilon(
        self, *, surfaces: Collection[str] | None = None, client: int | None = None
    ) -> float:
        """The smallest epsilon that an accountant proves; infinite if none proves any."""
        return smallest_bound(self.epsilon_by_accountant(surfaces=surfaces, client=client))

    def totals(
        self, *, surfaces: Collection[str] | None = None, client: int | None = None
    ) -> set[Tally]:
        """The candidates of which ``epsilon`` takes the worst: the compositions of each client's
        partition cells, largest only."""
        names = None
        if surfaces is not None:
            names = frozenset(map(str, surfaces))
        key = (names, client)
        if key not in self._totals:
            rows = self._releases
            if surfaces is not None:
                rows = self.closure(surfaces)
            self._totals[key] = _cell_totals(rows, client)
        return self._totals[key]

    def to_json(self) -> dict[str, Any]:
        """The content of ledger.json (plain lists, strings and finite numbers)."""
        return json.loads("".join(self.text()))  # type: ignore[no-any-return]

    def text(self) -> Iterator[str]:
        """``to_json`` as JSON in parts, row by row: whole, it would take many times the ledger's
        memory."""
        head = {"schema": SCHEMA, "relation": self.relation, "unit": self.unit, "delta": self.delta}
        yield f'{json.dumps(head)[:-1]}, "releases": ['
        for release in self._releases:
            separator = ", " if release.id else ""
            yield separator + json.dumps(_release_to_json(release), allow_nan=False)
        yield "]}\n"

    @staticmethod
    def from_json(data: Mapping[str, Any] | str) -> Ledger:
        """Read ``to_json``'s content or its text. Raises ValueError with one line that names what
        is wrong."""
        if isinstance(data, str):
            data = json.loads(data)
        if not isinstance(data, Mapping):
            raise ValueError(f"ledger: an object is needed, got {type(data).__name__}")
        if data.get("schema") != SCHEMA or isinstance(data["schema"], bool):
            raise ValueError(
                f"ledger.schema={data.get('schema')!r}: this version reads schema {SCHEMA}"
            )
        _check_keys(data, {"schema", "relation", "unit", "delta", "releases"}, "ledger")
        releases = _typed_value(data, "releases", list, "ledger")
        ledger = Ledger(
            _typed_value(data, "relation", str, "ledger"),
            _typed_value(data, "unit", str, "ledger"),
            _finite_value(data, "delta", "ledger"),
        )
        for index, item in enumerate(releases):
            if not isinstance(item, Mapping) or item.get("id") != index:
                raise ValueError(f"ledger.releases[{index}]: an object with id {index} is needed")
            ledger.append([_row_from_json(item)], absolute=True)
        return ledger


def _cell_totals(rows: Iterable[Release], client: int | None) -> set[Tally]:
    """The distinct compositions of all (client, partition cell); the server's own rows touch
    everyone."""
    events_of_client: dict[int, EventsByCell] = {}
    shared: EventsByCell = {}
    for row in rows:
        if row.client == SERVER:
            cells = shared
        elif client in (None, row.client):
            cells = events_of_client.setdefault(row.client, {})
        else:
            continue
        cells.setdefault(row.partition, []).append((row.event, row.count))
    totals = set()
    for cells in events_of_client.values() or [{}]:
        # rows without a partition are composed with each cell; without cells, they are all
        outside = [*cells.get(None, ()), *shared.get(None, ())]
        names = {*cells, *shared} - {None}
        if not names:
            totals.add(tally_events(outside))
        for name in names:
            totals.add(tally_events([*outside, *cells.get(name, ()), *shared.get(name, ())]))
    return _largest_totals(totals)


def _largest_totals(totals: set[Tally]) -> set[Tally]:
    """The totals that no other one covers: only they need the accountant."""
    largest: set[Tally] = set()
    for total in totals:
        if not any(candidate.covers(total) for candidate in largest):
            largest = {candidate for candidate in largest if not total.covers(candidate)} | {total}
    return largest


def _release_to_json(release: Release) -> dict[str, Any]:
    return {
        "id": release.id,
        "round": release.round,
        "client": release.client,
        "name": release.name,
        "surface": str(release.surface),
        "visible_to": list(release.visible_to),
        "shape": {name: list(shape) for name, shape in release.shape.items()},
        "digest": release.digest,
        "partition": release.partition,
        "clip_norm": release.clip_norm,
        "sensitivity": {"value": release.sensitivity, "why": release.why},
        "noise_std": release.noise_std,
        "lattice": release.lattice,
        "event": event_to_json(release.event),
        "count": release.count,
        "flags": dict(release.flags),
        "post_of": list(release.post_of),
        "nonprivate_reason": release.nonprivate_reason,
    }


def _row_from_json(item: Mapping[str, Any]) -> LedgerRow:
    where = f"release {item['id']}"
    _check_keys(item, RELEASE_KEYS, where)
    sensitivity = _typed_value(item, "sensitivity", dict, where)
    _check_keys(sensitivity, {"value", "why"}, f"{where}.sensitivity")
    integers = {name: _typed_value(item, name, int, where) for name in ("round", "client", "count")}
    text = {name: _typed_value(item, name, str, where) for name in ("name", "surface", "digest")}
    shape = _typed_value(item, "shape", dict, where)
    flags = _typed_value(item, "flags", dict, where)
    _typed_list(list(flags.values()), bool, f"{where}.flags")
    return LedgerRow(
        **integers,
        **text,
        visible_to=tuple(_typed_list(item["visible_to"], str, f"{where}.visible_to")),
        shape={
            key: tuple(_typed_list(dims, int, f"{where}.shape.{key}"))
            for key, dims in shape.items()
        },
        event=event_from_json(item["event"]),
        partition=_optional_text(item, "partition", where),
        clip_norm=_optional_number(item, "clip_norm", where),
        sensitivity=_optional_number(sensitivity, "value", where),
        why=_typed_value(sensitivity, "why", str, where),
        noise_std=_finite_value(item, "noise_std", where),
        lattice=_optional_number(item, "lattice", where),
        flags=dict(flags),
        post_of=tuple(_typed_list(item["post_of"], int, f"{where}.post_of")),
        nonprivate_reason=_optional_text(item, "nonprivate_reason", where),
    )


def _check_keys(data: Mapping[str, Any], wanted: set[str], where: str) -> None:
    if set(data) != wanted:
        raise ValueError(
            f"{where}: missing {sorted(wanted - set(data))}, unknown {sorted(set(data) - wanted)}"
        )


def _typed_value(data: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    return _typed_list([data[key]], kind, f"{where}.{key}")[0]


def _typed_list(values: Any, kind: type, where: str) -> list[Any]:
    if not isinstance(values, list):
        raise ValueError(f"{where}={values!r}: a list is needed")
    for value in values:
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise ValueError(f"{where}={value!r}: a {kind.__name__} is needed")
    return values


def _optional_text(data: Mapping[str, Any], key: str, where: str) -> str | None:
    if data[key] is None:
        return None
    text: str = _typed_value(data, key, str, where)
    return text


def _optional_number(data: Mapping[str, Any], key: str, where: str) -> float | None:
    if data[key] is None:
        return None
    return _finite_value(data, key, where)


def _finite_value(data: Mapping[str, Any], key: str, where: str) -> float:
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{where}.{key}={value!r}: a finite number is needed")
    return float(value)

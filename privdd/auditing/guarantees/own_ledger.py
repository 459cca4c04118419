"""T0: does the ledger tell of everything that the run released?

Epsilon is composed from the ledger's rows. So they are held against what was noted of the mechanisms while the run
trained (``privdd.federated.noise_record``): each release is counted, in its own cell and round, for its own client,
with the event that the mechanism stated; the rate of sampling in that event is the one that coins were tossed at;
what was computed from releases says so; and the epsilon stated is that of what was noted. No error is spent on any of
it: a row is right or wrong.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Set

import dp_accounting as dpa

from attacks.types import Adversary, Family, Finding
from privdd.auditing.guarantees.least_epsilon import at_least
from privdd.auditing.guarantees.own_noise import spent
from privdd.auditing.guarantees.statement import Subject
from privdd.auditing.looked_at import covered, left_out
from privdd.federated.channel import POST_PROCESSING
from privdd.federated.noise_record import NoiseRecord, Watch
from privdd.privacy.accounting import epsilon
from privdd.privacy.ledger import SERVER, Release

LEDGER = "t0_ledger"

Place = tuple[int, int, str, str | None]  # round, client, name, partition


def ledger_findings(subject: Subject, record: NoiseRecord) -> Iterator[Finding]:
    """One row for each name: what the ledger has wrong about it, or that it is right, or was not looked at."""
    noted = {
        (watch.round, release.name) for watch in record.rounds.values() if watch.audited for release in watch.releases
    }
    wrong = list(_wrong(subject, record)) if any(watch.releases for watch in record.rounds.values()) else []
    for name in dict.fromkeys(name for name, _ in wrong):
        says = [text for of, text in wrong if of == name]
        note = f"{says[0]}{f' (and {len(says) - 1} more)' if len(says) > 1 else ''}"
        yield _row(subject, name, len(says), note, {"refuted": True, **covered(LEDGER, _rounds(noted, name))})
    for name in [n for n in subject.plan.mechanisms if subject.spends(n) and n not in dict(wrong)]:
        seen, gone = _rounds(noted, name), sorted(spent(subject, name).keys() - _rounds(noted, name))
        if gone:
            why = f"no release of {len(gone)} round(s) was noted while the run trained (first: round {gone[0]})"
            yield _row(subject, name, len(seen), f"the ledger was not looked at: {why}", left_out(LEDGER, why))
        else:
            yield _row(
                subject, name, len(seen), "the ledger counts every release, as it was made", covered(LEDGER, seen)
            )


def _rounds(noted: Set[tuple[int, str]], name: str) -> set[int]:
    return {round for round, of in noted if of == name}


def _row(subject: Subject, name: str, count: int, note: str, more: dict[str, object]) -> Finding:
    measures = {"signal": name, "n": count, "note": note, "diagnostics": {"unit": subject.ledger.unit, **more}}
    return Finding(subject.surface(name), LEDGER, Family.GUARANTEE, Adversary.ANALYST, measures)


def _wrong(subject: Subject, record: NoiseRecord) -> Iterator[tuple[str, str]]:
    """(name of a query or upload, what the ledger has wrong about it)."""
    rows = [r for r in subject.ledger.releases if r.client != SERVER and (r.round, r.client) in record.rounds]
    entered: dict[Place, Counter[dpa.DpEvent]] = {}
    for row in rows:
        if row.protected:
            of = entered.setdefault((row.round, row.client, row.name, row.partition), Counter())
            of[row.event] += row.count
    for watch in record.rounds.values():
        for (name, partition), made in _made(watch).items():
            place = (watch.round, watch.client, name, partition)
            yield from ((name, text) for text in _uncounted(place, made, entered.get(place, Counter())))
        yield from _rates(watch)
    yield from _other_units(rows)
    yield from _rootless(rows)
    yield from _understated(subject, record)


def _understated(subject: Subject, record: NoiseRecord) -> Iterator[tuple[str, str]]:
    """What was noted of the audited client, composed by itself, costs more than the ledger states of all, or of a surface."""
    ledger, victim = subject.ledger, subject.plan.victim
    known: dict[frozenset[tuple[dpa.DpEvent, int]], float] = {}  # most cells are alike
    for surface in (None, *dict.fromkeys(row.surface for row in ledger.releases)):
        wanted = None if surface is None else [surface]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # infinite where there is no bound: then nothing is understated
            stated = min(ledger.epsilon(surfaces=wanted, client=victim, accountant=a) for a in ("pld", "rdp"))  # type: ignore[arg-type]
        if math.isinf(stated):
            continue
        rows = ledger.releases if wanted is None else ledger.closure(wanted)
        cells = _by_cell(record, {(row.round, row.name) for row in rows if row.client == victim})
        for cell in sorted(cells, key=str):
            made = cells[cell] + (cells.get(None, []) if cell is not None else [])
            counts = Counter(event for _, event in made)
            key = frozenset(counts.items())
            known[key] = least = known[key] if key in known else _least(counts, subject)
            if least > stated * (1 + 1e-6) + 1e-9:
                of = f"{cell or 'all records'}{f' behind {surface}' if surface else ''}"
                yield (
                    made[0][0],
                    f"the releases of {of} compose to epsilon {least:.4g}, and the ledger states {stated:.4g}",
                )
                return


def _by_cell(record: NoiseRecord, wanted: Set[tuple[int, str]]) -> dict[str | None, list[tuple[str, dpa.DpEvent]]]:
    """Cell -> (name, event) of the audited client's releases of these names in these rounds."""
    cells: dict[str | None, list[tuple[str, dpa.DpEvent]]] = {}
    for watch in record.rounds.values():
        for release in watch.releases if watch.client == record.victim else ():
            if release.event is not None and (watch.round, release.name) in wanted:
                cells.setdefault(release.partition, []).append((release.name, release.event))
    return cells


def _least(counts: Counter[dpa.DpEvent], subject: Subject) -> float:
    """What these releases cost for certain, by the ledger's accountant and by one that shares nothing with it."""
    relation = subject.plan.relation
    event = dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(one, count) for one, count in counts.items()])
    own = epsilon(event, subject.delta, relation=relation)  # type: ignore[arg-type]
    return max(own, at_least(counts.items(), subject.delta, relation))


def _made(watch: Watch) -> dict[tuple[str, str | None], Counter[dpa.DpEvent]]:
    """What a client round released, by query and cell."""
    made: dict[tuple[str, str | None], Counter[dpa.DpEvent]] = {}
    for release in watch.releases:
        if release.event is not None:
            made.setdefault((release.name, release.partition), Counter())[release.event] += 1
    return made


def _uncounted(place: Place, made: Counter[dpa.DpEvent], entered: Counter[dpa.DpEvent]) -> Iterator[str]:
    round, client, name, partition = place
    where = f"round {round}, client {client}{f', {partition}' if partition else ''}"
    for event, count in made.items():
        if entered[event] < count:
            yield f"{where}: {name!r} was released {count} times as {event}, and the ledger has {entered[event]} such"


def _rates(watch: Watch) -> Iterator[tuple[str, str]]:
    """An event that is amplified by a lower rate of sampling than coins were tossed at."""
    tossed = {coins.name: coins.probability for coins in watch.coins}
    for release in watch.releases:
        event = release.event
        if not isinstance(event, dpa.PoissonSampledDpEvent):
            continue
        rate = tossed.get(release.name)
        if rate is not None and event.sampling_probability < rate * (1 - 1e-9):
            yield (
                release.name,
                (
                    f"round {watch.round}, client {watch.client}: {release.name!r} is accounted at a sampling "
                    f"probability of {event.sampling_probability:.3g}, and coins were tossed at {rate:.3g}"
                ),
            )


def _other_units(rows: list[Release]) -> Iterator[tuple[str, str]]:
    """Less noise than the stated multiplier makes of the stated sensitivity: one of the two is wrong."""
    for row in rows:
        event = getattr(row.event, "event", row.event)
        if row.sensitivity and isinstance(event, dpa.GaussianDpEvent | dpa.LaplaceDpEvent):
            needed = event.noise_multiplier * row.sensitivity
            if row.noise_std < needed * (1 - 1e-6):
                says = f"a multiplier of {event.noise_multiplier:.4g} and a sensitivity of {row.sensitivity:.4g}"
                yield (
                    row.name,
                    f"round {row.round}, client {row.client}: noise of {row.noise_std:.4g} is stated, and {says}",
                )
                return


def _rootless(rows: list[Release]) -> Iterator[tuple[str, str]]:
    """Post-processing that does not point to the releases of its own client round."""
    inner: dict[tuple[int, int], set[int]] = {}
    for row in rows:
        if row.protected and row.visible_to == ("analyst",):
            inner.setdefault((row.round, row.client), set()).add(row.id)
    for row in rows:
        missing = inner.get((row.round, row.client), set()) - set(row.post_of)
        if row.why == POST_PROCESSING and missing:
            yield (
                row.name,
                (
                    f"round {row.round}, client {row.client}: {row.name!r} was computed from {len(missing)} release(s) "
                    "that its row does not point to"
                ),
            )

"""T0: does the ledger tell of everything that the run released, and is the epsilon that it states
large enough?

Epsilon is composed from the ledger's rows. So they are held against what was noted of the
mechanisms while the run trained (``privdd.federated.noise_log``). No error is spent on any of it: a
row is right or wrong.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from typing import Any

import dp_accounting as dpa

from attacks.types import Finding
from privdd.auditing.coverage import covered_diagnostics, untested_diagnostics
from privdd.auditing.dp_tests.epsilon_lower_bound import epsilon_lower_bound
from privdd.auditing.dp_tests.logged_releases import release_counts
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.federated.channel import POST_PROCESSING
from privdd.federated.noise_log import NoiseLog, RoundLog
from privdd.privacy.ledger import SERVER, Release
from privdd.privacy.noise_laws import noise_law

LEDGER_TEST = "t0_ledger"
EPSILON_RTOL = 1e-6  # by which a composition may cost more than is stated: rounding
EPSILON_ATOL = 1e-9
RATE_RTOL = 1e-9
NOISE_RTOL = 1e-6

RowPlace = tuple[int, int, str, str | None]  # round, client, name, partition
EventCounter = Counter[dpa.DpEvent]


def ledger_findings(subject: GuaranteeSubject, record: NoiseLog) -> Iterator[Finding]:
    """One row for each name: what the ledger has wrong about it, or that it is right, or was not
    looked at."""
    logged = set()
    for round_log in record.rounds.values():
        if round_log.audited:
            logged |= {(round_log.round, release.name) for release in round_log.releases}
    errors: dict[str, list[str]] = {}
    if any(round_log.releases for round_log in record.rounds.values()):
        for name, text in _find_errors(subject, record):
            errors.setdefault(name, []).append(text)
    for name, texts in errors.items():
        note = texts[0]
        if len(texts) > 1:
            note += f" (and {len(texts) - 1} more)"
        covered = covered_diagnostics(LEDGER_TEST, _logged_rounds(logged, name))
        diagnostics = {"refuted": True, **covered}
        yield subject.run_finding(LEDGER_TEST, name, len(texts), note, diagnostics)
    for name in subject.plan.mechanisms:
        if name not in errors and subject.has_finite_epsilon(name):
            yield _sound_finding(subject, name, _logged_rounds(logged, name))


def _sound_finding(subject: GuaranteeSubject, name: str, rounds: set[int]) -> Finding:
    """The row of a name about which the ledger is right, as far as was noted."""
    note = "the ledger counts every release, as it was made"
    diagnostics: dict[str, Any] = covered_diagnostics(LEDGER_TEST, rounds)
    missing = sorted(release_counts(subject, name).keys() - rounds)
    if missing:
        why = (
            f"no release of {len(missing)} round(s) was noted while the run trained (first: "
            f"round {missing[0]})"
        )
        note = f"the ledger was not tested: {why}"
        diagnostics = untested_diagnostics(LEDGER_TEST, why)
    return subject.run_finding(LEDGER_TEST, name, len(rounds), note, diagnostics)


def _logged_rounds(logged: Set[tuple[int, str]], name: str) -> set[int]:
    return {round for round, release_name in logged if release_name == name}


def _find_errors(subject: GuaranteeSubject, record: NoiseLog) -> Iterator[tuple[str, str]]:
    """(name of a query or upload, what the ledger has wrong about it)."""
    rows = [
        row
        for row in subject.ledger.releases
        if row.client != SERVER and (row.round, row.client) in record.rounds
    ]
    entered = _entered_events(rows)
    for round_log in record.rounds.values():
        for (name, partition), released in _released_events(round_log).items():
            place = (round_log.round, round_log.client, name, partition)
            for text in _find_uncounted(place, released, entered.get(place, Counter())):
                yield name, text
        yield from _find_wrong_rates(round_log)
    yield from _find_small_noise(rows)
    yield from _find_missing_roots(rows)
    yield from _find_understated_epsilon(subject, record)


def _entered_events(rows: list[Release]) -> dict[RowPlace, EventCounter]:
    """How often the ledger has each event, by place."""
    entered: dict[RowPlace, EventCounter] = {}
    for row in rows:
        if row.is_protected:
            place = (row.round, row.client, row.name, row.partition)
            entered.setdefault(place, Counter())[row.event] += row.count
    return entered


def _released_events(round_log: RoundLog) -> dict[tuple[str, str | None], EventCounter]:
    """What a client round released, by query and cell."""
    released: dict[tuple[str, str | None], EventCounter] = {}
    for release in round_log.releases:
        if release.event is not None:
            released.setdefault((release.name, release.partition), Counter())[release.event] += 1
    return released


def _find_understated_epsilon(
    subject: GuaranteeSubject, record: NoiseLog
) -> Iterator[tuple[str, str]]:
    """What was noted of the audited client, composed by itself, costs more than the ledger states
    of all, or of a surface."""
    ledger = subject.ledger
    victim = subject.plan.victim
    bounds: dict[frozenset[tuple[dpa.DpEvent, int]], float] = {}  # most cells are equal
    for surface in (None, *dict.fromkeys(row.surface for row in ledger.releases)):
        surfaces = None if surface is None else [surface]
        stated = _stated_epsilon(subject, surfaces)
        if math.isinf(stated):
            continue
        rows: Sequence[Release]
        if surfaces is None:
            rows = ledger.releases
        else:
            rows = ledger.closure(surfaces)
        places = {(row.round, row.name) for row in rows if row.client == victim}
        cells = _events_by_cell(record, places)
        for cell in sorted(cells, key=str):
            released = [*cells[cell]]
            if cell is not None:
                released += cells.get(None, [])
            counts = Counter(event for _, event in released)
            key = frozenset(counts.items())
            if key not in bounds:
                bounds[key] = _least_epsilon(counts, subject)
            if bounds[key] > stated * (1 + EPSILON_RTOL) + EPSILON_ATOL:
                what = cell or "all records"
                if surface:
                    what += f" behind {surface}"
                says = (
                    f"the releases of {what} compose to epsilon {bounds[key]:.4g}, and the ledger "
                    f"states {stated:.4g}"
                )
                yield released[0][0], says
                return


def _stated_epsilon(subject: GuaranteeSubject, surfaces: list[str] | None) -> float:
    """What the ledger states for the audited client; infinite if there is no bound: then nothing
    is understated."""
    ledger = subject.ledger
    client = subject.plan.victim
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ledger.proven_epsilon(surfaces=surfaces, client=client)


def _events_by_cell(
    record: NoiseLog, places: Set[tuple[int, str]]
) -> dict[str | None, list[tuple[str, dpa.DpEvent]]]:
    """Cell -> (name, event) of the audited client's releases of these names in these rounds."""
    cells: dict[str | None, list[tuple[str, dpa.DpEvent]]] = {}
    for round_log in record.rounds.values():
        if round_log.client != record.victim:
            continue
        for release in round_log.releases:
            if release.event is not None and (round_log.round, release.name) in places:
                cells.setdefault(release.partition, []).append((release.name, release.event))
    return cells


def _least_epsilon(counts: EventCounter, subject: GuaranteeSubject) -> float:
    """What these releases cost for certain, by the ledger's accountant and by one that shares
    nothing with it."""
    parts = [dpa.SelfComposedDpEvent(event, count) for event, count in counts.items()]
    return max(
        subject.proven_epsilon(dpa.ComposedDpEvent(parts)),
        epsilon_lower_bound(counts.items(), subject.delta, subject.plan.relation),
    )


def _find_uncounted(
    place: RowPlace, released: EventCounter, entered: EventCounter
) -> Iterator[str]:
    """Events that were released more often than the ledger has them."""
    round, client, name, partition = place
    where = f"round {round}, client {client}"
    if partition:
        where += f", {partition}"
    for event, count in released.items():
        if entered[event] < count:
            yield (
                f"{where}: {name!r} was released {count} times as {event}, and the ledger has "
                f"{entered[event]} such"
            )


def _find_wrong_rates(round_log: RoundLog) -> Iterator[tuple[str, str]]:
    """An event that is amplified by a lower rate of sampling than coins were tossed at."""
    rates = {draw.name: draw.probability for draw in round_log.samples}
    for release in round_log.releases:
        event = release.event
        if not isinstance(event, dpa.PoissonSampledDpEvent):
            continue
        rate = rates.get(release.name)
        if rate is not None and event.sampling_probability < rate * (1 - RATE_RTOL):
            says = (
                f"round {round_log.round}, client {round_log.client}: {release.name!r} is "
                f"accounted at a sampling probability of {event.sampling_probability:.3g}, and "
                f"coins were tossed at {rate:.3g}"
            )
            yield release.name, says


def _find_small_noise(rows: list[Release]) -> Iterator[tuple[str, str]]:
    """Less noise than the stated multiplier z makes of the stated sensitivity, z times it: one of
    the two is wrong."""
    for row in rows:
        event = getattr(row.event, "event", row.event)
        if not row.sensitivity or noise_law(event) is None:
            continue
        if row.noise_std < event.noise_multiplier * row.sensitivity * (1 - NOISE_RTOL):
            says = (
                f"round {row.round}, client {row.client}: noise of {row.noise_std:.4g} is stated, "
                f"and a multiplier of {event.noise_multiplier:.4g} and a sensitivity of "
                f"{row.sensitivity:.4g}"
            )
            yield row.name, says
            return


def _find_missing_roots(rows: list[Release]) -> Iterator[tuple[str, str]]:
    """Post-processing that does not point to the releases of its own client round."""
    roots: dict[tuple[int, int], set[int]] = {}
    for row in rows:
        if row.is_protected and row.visible_to == ("analyst",):
            roots.setdefault((row.round, row.client), set()).add(row.id)
    for row in rows:
        missing = roots.get((row.round, row.client), set()) - set(row.post_of)
        if row.why == POST_PROCESSING and missing:
            says = (
                f"round {row.round}, client {row.client}: {row.name!r} was computed from "
                f"{len(missing)} release(s) that its row does not point to"
            )
            yield row.name, says

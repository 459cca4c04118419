"""T0: does the ledger tell of everything that the run released, and is the epsilon that it states
large enough?

Epsilon is composed from the ledger's rows. So they are held against what was noted of the
mechanisms while the run trained (``privdd.federated.noise_log``). No error is spent on any of it: a
row is right or wrong."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from functools import reduce
from typing import Any

import dp_accounting as dpa
from dp_accounting.pld import privacy_loss_distribution as pld

from attacks.types import Finding
from privdd.auditing.coverage import covered_diagnostics, untested_diagnostics
from privdd.auditing.dp_tests.logged_releases import release_counts
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.federated.channel import POST_PROCESSING
from privdd.federated.noise_log import NoiseLog, RoundLog
from privdd.privacy.ledger import SERVER, Release

# share of epsilon, about, that rounding down may cost: half a step of the grid in each release
ROUNDING_SHARE = 0.01
FINEST_GRID = 1e-5
COARSEST_GRID = 1e-1
TRUNCATED_MASS = (
    1e-14  # of delta; dp-accounting cuts off 1e-15 of one kind of release as infinite loss
)
NEIGHBOURING_RELATIONS = {
    "add_remove": dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero_out": dpa.NeighboringRelation.REPLACE_SPECIAL,
    "replace": dpa.NeighboringRelation.REPLACE_ONE,
}


def epsilon_lower_bound(
    events: Iterable[tuple[dpa.DpEvent, int]], delta: float, relation: str
) -> float:
    """A lower bound of epsilon of so many of each event; 0 where one of them is of no law that is
    known here.

    By dp-accounting alone, which shares no code with our accounting. Privacy losses are rounded
    down where an accountant rounds them up, so that no sound accountant states less; Gaussians
    alone are exact (Balle and Wang 2018, Theorem 8)."""
    parts = [part for event, count in events for part in _flatten_event(event, count)]
    if not all(_is_known_event(event) for event, _ in parts):
        return 0.0
    width = 2.0 if relation == "replace" else 1.0
    squared = math.fsum(
        n * (width / e.noise_multiplier) ** 2
        for e, n in parts
        if isinstance(e, dpa.GaussianDpEvent)
    )
    others = [(event, n) for event, n in parts if not isinstance(event, dpa.GaussianDpEvent)]
    if not others:
        return float(dpa.get_epsilon_gaussian(1 / math.sqrt(squared), delta)) if squared else 0.0
    finest = 2 * ROUNDING_SHARE * _approximate_epsilon(parts, width) / sum(n for _, n in others)
    step = min(COARSEST_GRID, max(FINEST_GRID, finest))
    reached = delta + TRUNCATED_MASS * (
        len(others) + 1
    )  # below what is cut off, the losses would seem infinite
    try:
        return _compose_rounded_down(squared, others, relation, step).get_epsilon_for_delta(
            min(reached, 1.0)
        )
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
    sampled = isinstance(event, dpa.PoissonSampledDpEvent) and isinstance(
        event.event, dpa.GaussianDpEvent
    )
    return sampled or isinstance(event, dpa.GaussianDpEvent | dpa.LaplaceDpEvent)


def _approximate_epsilon(parts: Iterable[tuple[dpa.DpEvent, int]], width: float) -> float:
    """About the epsilon to be found: that of the central limit (Dong et al. 2022, Corollary 5.4),
    delta about 1e-5."""
    mu2 = math.fsum(n * _squared_mu(event, width) for event, n in parts)
    return mu2 / 2 + 4 * math.sqrt(mu2)


def _squared_mu(event: dpa.DpEvent, width: float) -> float:
    if not isinstance(event, dpa.PoissonSampledDpEvent):
        return (width / event.noise_multiplier) ** 2  # type: ignore[attr-defined]
    # type: ignore[attr-defined]
    z = event.event.noise_multiplier / width
    q = event.sampling_probability
    return min(1 / z**2, q**2 * math.expm1(min(1 / z**2, 500.0)))


def _compose_rounded_down(
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
                event.event.noise_multiplier,
                sampling_prob=event.sampling_probability,
                neighboring_relation=NEIGHBOURING_RELATIONS[relation],
                **grid,
            )
        made.append(one.self_compose(count))
    return reduce(lambda one, other: one.compose(other), made)


LEDGER_TEST = "t0_ledger"

RowPlace = tuple[int, int, str, str | None]  # round, client, name, partition


def ledger_findings(subject: GuaranteeSubject, record: NoiseLog) -> Iterator[Finding]:
    """One row for each name: what the ledger has wrong about it, or that it is right, or was not
    looked at."""
    audited = [watch for watch in record.rounds.values() if watch.audited]
    noted = {(watch.round, release.name) for watch in audited for release in watch.releases}
    wrong = (
        list(_find_errors(subject, record))
        if any(watch.releases for watch in record.rounds.values())
        else []
    )
    for name in dict.fromkeys(name for name, _ in wrong):
        says = [text for of, text in wrong if of == name]
        note = f"{says[0]}{f' (and {len(says) - 1} more)' if len(says) > 1 else ''}"
        more = {"refuted": True, **covered_diagnostics(LEDGER_TEST, _logged_rounds(noted, name))}
        yield subject.run_finding(LEDGER_TEST, name, len(says), note, more)
    for name in [
        n for n in subject.plan.mechanisms if subject.has_finite_epsilon(n) and n not in dict(wrong)
    ]:
        seen = _logged_rounds(noted, name)
        note = "the ledger counts every release, as it was made"
        more = covered_diagnostics(LEDGER_TEST, seen)
        if gone := sorted(release_counts(subject, name).keys() - seen):
            why = (
                f"no release of {len(gone)} round(s) was noted while the run trained (first: "
                f"round {gone[0]})"
            )
            note = f"the ledger was not looked at: {why}"
            more = untested_diagnostics(LEDGER_TEST, why)
        yield subject.run_finding(LEDGER_TEST, name, len(seen), note, more)


def _logged_rounds(noted: Set[tuple[int, str]], name: str) -> set[int]:
    return {round for round, of in noted if of == name}


def _find_errors(subject: GuaranteeSubject, record: NoiseLog) -> Iterator[tuple[str, str]]:
    """(name of a query or upload, what the ledger has wrong about it)."""
    rows = [
        r
        for r in subject.ledger.releases
        if r.client != SERVER and (r.round, r.client) in record.rounds
    ]
    entered: dict[RowPlace, Counter[dpa.DpEvent]] = {}
    for row in rows:
        if row.is_protected:
            of = entered.setdefault((row.round, row.client, row.name, row.partition), Counter())
            of[row.event] += row.count
    for watch in record.rounds.values():
        for (name, partition), made in _released_events(watch).items():
            place = (watch.round, watch.client, name, partition)
            yield from (
                (name, text) for text in _find_uncounted(place, made, entered.get(place, Counter()))
            )
        yield from _find_wrong_rates(watch)
    yield from _find_small_noise(rows)
    yield from _find_missing_roots(rows)
    yield from _find_understated_epsilon(subject, record)


def _find_understated_epsilon(
    subject: GuaranteeSubject, record: NoiseLog
) -> Iterator[tuple[str, str]]:
    """What was noted of the audited client, composed by itself, costs more than the ledger states
    of all, or of a surface."""
    ledger = subject.ledger
    victim = subject.plan.victim
    known: dict[frozenset[tuple[dpa.DpEvent, int]], float] = {}  # most cells are alike
    for surface in (None, *dict.fromkeys(row.surface for row in ledger.releases)):
        wanted = None if surface is None else [surface]
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # infinite where there is no bound: then nothing is understated
            stated = min(
                ledger.epsilon(surfaces=wanted, client=victim, accountant=a) for a in ("pld", "rdp")
            )  # type: ignore[arg-type]
        if math.isinf(stated):
            continue
        rows = ledger.releases if wanted is None else ledger.closure(wanted)
        cells = _events_by_cell(
            record, {(row.round, row.name) for row in rows if row.client == victim}
        )
        for cell in sorted(cells, key=str):
            made = cells[cell] + (cells.get(None, []) if cell is not None else [])
            counts = Counter(event for _, event in made)
            key = frozenset(counts.items())
            known[key] = least = known[key] if key in known else _least_epsilon(counts, subject)
            if least > stated * (1 + 1e-6) + 1e-9:
                of = f"{cell or 'all records'}{f' behind {surface}' if surface else ''}"
                says = (
                    f"the releases of {of} compose to epsilon {least:.4g}, and the ledger "
                    f"states {stated:.4g}"
                )
                yield made[0][0], says
                return


def _events_by_cell(
    record: NoiseLog, wanted: Set[tuple[int, str]]
) -> dict[str | None, list[tuple[str, dpa.DpEvent]]]:
    """Cell -> (name, event) of the audited client's releases of these names in these rounds."""
    cells: dict[str | None, list[tuple[str, dpa.DpEvent]]] = {}
    for watch in record.rounds.values():
        for release in watch.releases if watch.client == record.victim else ():
            if release.event is not None and (watch.round, release.name) in wanted:
                cells.setdefault(release.partition, []).append((release.name, release.event))
    return cells


def _least_epsilon(counts: Counter[dpa.DpEvent], subject: GuaranteeSubject) -> float:
    """What these releases cost for certain, by the ledger's accountant and by one that shares
    nothing with it."""
    relation = subject.plan.relation
    event = dpa.ComposedDpEvent(
        [dpa.SelfComposedDpEvent(one, count) for one, count in counts.items()]
    )
    return max(
        subject.accounted_epsilon(event),
        epsilon_lower_bound(counts.items(), subject.delta, relation),
    )


def _released_events(watch: RoundLog) -> dict[tuple[str, str | None], Counter[dpa.DpEvent]]:
    """What a client round released, by query and cell."""
    made: dict[tuple[str, str | None], Counter[dpa.DpEvent]] = {}
    for release in watch.releases:
        if release.event is not None:
            made.setdefault((release.name, release.partition), Counter())[release.event] += 1
    return made


def _find_uncounted(
    place: RowPlace, made: Counter[dpa.DpEvent], entered: Counter[dpa.DpEvent]
) -> Iterator[str]:
    round, client, name, partition = place
    where = f"round {round}, client {client}{f', {partition}' if partition else ''}"
    for event, count in made.items():
        if entered[event] < count:
            yield (
                f"{where}: {name!r} was released {count} times as {event}, and the ledger has "
                f"{entered[event]} such"
            )


def _find_wrong_rates(watch: RoundLog) -> Iterator[tuple[str, str]]:
    """An event that is amplified by a lower rate of sampling than coins were tossed at."""
    tossed = {coins.name: coins.probability for coins in watch.samples}
    for release in watch.releases:
        event = release.event
        if not isinstance(event, dpa.PoissonSampledDpEvent):
            continue
        rate = tossed.get(release.name)
        if rate is not None and event.sampling_probability < rate * (1 - 1e-9):
            where = (
                f"round {watch.round}, client {watch.client}: {release.name!r} is accounted "
                "at a sampling probability of"
            )
            yield (
                release.name,
                f"{where} {event.sampling_probability:.3g}, and coins were tossed at {rate:.3g}",
            )


def _find_small_noise(rows: list[Release]) -> Iterator[tuple[str, str]]:
    """Less noise than the stated multiplier makes of the stated sensitivity: one of the two is
    wrong."""
    for row in rows:
        event = getattr(row.event, "event", row.event)
        if row.sensitivity and isinstance(event, dpa.GaussianDpEvent | dpa.LaplaceDpEvent):
            needed = event.noise_multiplier * row.sensitivity
            if row.noise_std < needed * (1 - 1e-6):
                says = (
                    f"a multiplier of {event.noise_multiplier:.4g} and a sensitivity of "
                    f"{row.sensitivity:.4g}"
                )
                where = f"round {row.round}, client {row.client}"
                yield row.name, f"{where}: noise of {row.noise_std:.4g} is stated, and {says}"
                return


def _find_missing_roots(rows: list[Release]) -> Iterator[tuple[str, str]]:
    """Post-processing that does not point to the releases of its own client round."""
    inner: dict[tuple[int, int], set[int]] = {}
    for row in rows:
        if row.is_protected and row.visible_to == ("analyst",):
            inner.setdefault((row.round, row.client), set()).add(row.id)
    for row in rows:
        missing = inner.get((row.round, row.client), set()) - set(row.post_of)
        if row.why == POST_PROCESSING and missing:
            where = (
                f"round {row.round}, client {row.client}: {row.name!r} was computed from "
                f"{len(missing)} release(s)"
            )
            yield row.name, f"{where} that its row does not point to"

"""T1, T2 and T3 of queries: noised sums over a client's records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attacks.canaries import Canaries, join_canaries
from attacks.types import Finding
from privdd.auditing.dp_tests.clean_values import (
    clean_numbers,
    sensitivity_unit,
)
from privdd.auditing.dp_tests.crafted_records import (
    common_label,
    draw_own_records,
    lone_class_record,
    spare_label,
    unusual_records,
)
from privdd.auditing.dp_tests.forced_runs import ExaminedRound
from privdd.auditing.dp_tests.instrumentation import RecordedRelease, recording_context
from privdd.auditing.dp_tests.likelihood_ratios import (
    IMAGE_UPLOADS,
    QuerySetup,
    RatioTranscripts,
    runs_by_class,
    runs_on_transcript,
    sampled_event,
)
from privdd.auditing.dp_tests.sensitivity_audit import (
    SensitivityTally,
    measure_other_clients,
    measure_sensitivity,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject, format_ranges
from privdd.core.rng import Keys
from privdd.core.types import UNKNOWN_CELL, class_of_cell
from privdd.federated.settings import GuaranteeBudget
from privdd.privacy.clipping import take_records
from privdd.privacy.mechanism import Mechanism

PER_STEP_QUERY = "synthetic_gradient"  # released separately at every step and for every class


def query_findings(subject: GuaranteeSubject, names: Sequence[str]) -> Iterator[Finding]:
    """T1, T2 and T3 of the queries ``names`` that the ledger accounts for."""
    looks = {
        name: subject.client_rounds(name) for name in names if subject.has_finite_epsilon(name)
    }
    guests = craft_guests(subject)
    base = draw_own_records(subject.shard, subject.keys, spare_label(subject.shard))
    history = subject.memory_history(base) if looks else None
    chosen = sorted({t for look in looks.values() for t in look.chosen})
    last = {look.last for look in looks.values()}
    labels = sorted({*guests.y.tolist(), *base.y.tolist()})
    tallies = {}
    others = list[int]()
    for t in chosen:
        keys = subject.keys.fold("t1", t)
        examined = ExaminedRound(subject.plan, subject.snapshots[t], subject.shard, keys, history)
        tallies[t] = measure_sensitivity(examined, base, guests, labels, brief=t not in last)
        if t == chosen[-1]:
            others = measure_other_clients(examined, base, guests, labels, tallies[t])
    for name, look in looks.items():
        seen = {t: of[name] for t, of in tallies.items() if name in of and of[name].changes}
        if seen:
            clip_note = (
                f"; of clients {format_ranges(others)} only whether they clip alike in round "
                f"{chosen[-1]}"
            )
            of_others = clip_note if others else ""
            yield from _findings_of_query(
                subject, name, seen, look.describe_rounds(sorted(seen)) + of_others, guests
            )
    yield from _findings_of_messages(subject, tallies)


def _findings_of_messages(
    subject: GuaranteeSubject, tallies: Mapping[int, Mapping[str, SensitivityTally]]
) -> Iterator[Finding]:
    """One row for each message that tells of a record beside the releases: it is the one accused,
    and no release. tallies: by round and query."""
    told: dict[str, str] = {}
    for t, by_query in tallies.items():
        for tally in by_query.values():
            told = {
                message: f"round {t}: {says}" for message, says in tally.message_leaks.items()
            } | told
    for message, note in told.items():
        yield subject.run_finding("t1_sensitivity", message, 1, note, {"refuted": True})


def craft_guests(subject: GuaranteeSubject) -> Canaries:
    """Crafted records: out-of-distribution ones in the commonest class, mislabelled ones, one alone
    in its class."""
    label = common_label(subject.shard)
    odd = unusual_records(subject.shard, label, subject.keys)
    return join_canaries(odd, lone_class_record(subject.shard, subject.keys))


def _ratio_runs(
    stage: QuerySetup, calls: int, budget: GuaranteeBudget, keys: Keys
) -> tuple[RatioTranscripts, RatioTranscripts | None]:
    """Runs up to their last release, ``calls`` of them, and a few that go on to their images: no
    bound from images is evidence for a claim, and they take nearly all of the time. Where every
    step is a release, the same runs."""
    if stage.name == PER_STEP_QUERY:
        found = runs_by_class(stage, budget.slow_runs, keys)
        return found, found if found.final.shape[1] else None
    few = runs_by_class(stage, budget.slow_runs, keys.fold("images"))
    return runs_by_class(stage, budget.runs, keys, releases=calls), few if few.final.shape[
        1
    ] else None


def _findings_of_query(
    subject: GuaranteeSubject,
    name: str,
    tallies: Mapping[int, SensitivityTally],
    looked_at: str,
    guests: Canaries,
) -> Iterator[Finding]:
    """tallies: by round; looked_at: which these are, in words."""
    mechanism = subject.plan.mechanisms[name]
    relation = subject.plan.relation
    snapshot = subject.snapshots[max(tallies)]
    tally = tallies[max(tallies)]
    calls = max(tally.calls.values())
    event = sampled_event(mechanism, calls)
    where = f"round {snapshot.round}, {calls} release(s) of {name!r}"
    statement = subject.statement(name, subject.accounted_epsilon(event), f"accounted for {where}")
    kappa, at = max((of.worst_guest(relation)[0], t) for t, of in tallies.items())
    worst = tallies[at].worst_guest(relation)[1]
    found_in = (
        f"; worst, in round {at}, is "
        f"{tallies[at].name_guest(guests, worst)}{tallies[at].describe_faults()}"
    )
    seen = len({guest for of in tallies.values() for guest in of.changes})
    searched = (
        f"{looked_at}, {calls} release(s) of {name!r} in each, {seen} crafted record(s){found_in}"
    )
    yield statement.sensitivity_finding(kappa, seen, searched, sorted(tallies))
    worst = tally.worst_guest(relation)[1]
    stage = QuerySetup(
        subject.plan_with_few_images(), snapshot, subject.shard, name, guests.x[worst]
    )
    keys = subject.keys.fold("runs", name)
    budget = subject.budget
    by_class = {None, UNKNOWN_CELL}.isdisjoint(map(class_of_cell, tally.calls))
    if by_class and any(image in stage.plan.method.uploads for image in IMAGE_UPLOADS):
        found, final, what = *_ratio_runs(stage, calls, budget, keys), repr(guests.names[worst])
    elif not tally.contributions:  # no crafted record's contribution is known
        return
    else:
        final = None
        what = tally.name_guest(guests, tally.recorded_guest)
        found = runs_on_transcript(mechanism, tally.contributions, budget.slow_runs, keys)
    note = f"{where} of a client that holds {what}, or nothing"
    yield from statement.likelihood_ratio_findings(found, note, final=final, event=event)


@dataclass
class _LargestChange:
    """Query -> the largest change of a release when all records go, in units, and how many releases
    were seen."""

    most: dict[str, float] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, heeded: RecordedRelease) -> None:
        nobody = take_records(heeded.rows, slice(0))
        change = clean_numbers(mechanism, heeded.rows) - clean_numbers(mechanism, nobody)
        name = heeded.name
        self.most[name] = max(
            self.most.get(name, 0.0), float(change.norm()) / sensitivity_unit(heeded.released)
        )
        self.seen[name] = self.seen.get(name, 0) + 1


def client_query_findings(subject: GuaranteeSubject) -> Iterator[Finding]:
    """One row for each query that the ledger accounts for, of some rounds that make it."""
    plan = subject.plan
    asked = [
        n for n in plan.mechanisms if n in plan.method.queries and subject.has_finite_epsilon(n)
    ]
    looks = {name: subject.client_rounds(name) for name in asked}
    chosen = sorted({t for look in looks.values() for t in look.chosen})
    rounds = {t: _measure_largest_change(subject, t) for t in chosen}
    for name, look in looks.items():
        seen = {t: moved for t, moved in rounds.items() if name in moved.most}
        if not seen:
            continue
        at = max(seen, key=lambda t: seen[t].most[name])
        calls = seen[at].seen[name]
        stated = subject.accounted_epsilon(sampled_event(subject.plan.mechanisms[name], calls))
        statement = subject.statement(
            name, stated, f"accounted for {calls} release(s) of {name!r}", "client"
        )
        with_all = f"with all {len(subject.shard.train)} records or none; most in round {at}"
        note = (
            f"{look.describe_rounds(sorted(seen))}, {calls} release(s) of {name!r} in each, "
            f"{with_all}"
        )
        yield statement.sensitivity_finding(seen[at].most[name], 1, note, sorted(seen), 1.0)


def _measure_largest_change(subject: GuaranteeSubject, round: int) -> _LargestChange:
    snapshot = subject.snapshots[round]
    moved = _LargestChange()
    ctx = recording_context(subject.plan, round, subject.keys.fold("t1", "client", round), moved)
    subject.plan.method.local(snapshot.broadcast, dict(snapshot.memory), subject.shard, ctx)
    return moved

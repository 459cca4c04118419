"""Guarantees of queries that clip record by record: T1 in the method's own round, T2 and T3 on one crafted record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attacks.canaries import Canaries, join
from attacks.types import Finding
from privdd.auditing.guarantees.accounted_curve import curve_finding
from privdd.auditing.guarantees.crafted_records import alone, common_label, oddities, own_records, spare_label
from privdd.auditing.guarantees.matching_transcripts import Transcripts
from privdd.auditing.guarantees.sensitivity import QueryTally, examine
from privdd.auditing.guarantees.statement import Statement, Subject
from privdd.auditing.guarantees.transcripts import IMAGES, QueryStage, by_class, on_transcript, sampled_event
from privdd.auditing.non_interference import History
from privdd.core.keys import Keys
from privdd.core.types import Records
from privdd.federated.settings import Budget
from privdd.federated.simulation import Snapshot
from privdd.privacy.accounting import epsilon

PER_STEP = "synthetic_gradient"  # released separately at every step and for every class


def query_findings(subject: Subject, names: Sequence[str]) -> Iterator[Finding]:
    """T1, T2 and T3 of the queries ``names`` that the ledger accounts for."""
    looks = {name: subject.rounds(name) for name in names if subject.spends(name)}
    guests, base = guests_of(subject), own_records(subject.shard, subject.keys, spare_label(subject.shard))
    history = subject.history(base) if looks else None
    chosen, last = sorted({t for look in looks.values() for t in look.chosen}), {look.last for look in looks.values()}
    tallies = {t: _examined(subject, subject.snapshots[t], base, guests, history, t not in last) for t in chosen}
    for name, look in looks.items():
        seen = {t: of[name] for t, of in tallies.items() if name in of and of[name].changes}
        if seen:
            yield from _of_query(subject, name, seen, look.words(sorted(seen)), guests)


def guests_of(subject: Subject) -> Canaries:
    """Crafted records: out-of-distribution ones in the commonest class, mislabelled ones, one alone in its class."""
    label = common_label(subject.shard)
    return join(oddities(subject.shard, label, subject.keys), alone(subject.shard, subject.keys))


def _examined(
    subject: Subject, snapshot: Snapshot, base: Records, guests: Canaries, history: History | None, brief: bool
) -> dict[str, QueryTally]:
    labels, keys = sorted({*guests.y.tolist(), *base.y.tolist()}), subject.keys.fold("t1", snapshot.round)
    return examine(subject.plan, snapshot, subject.shard, base, guests, keys, labels, history, brief)


def _runs(stage: QueryStage, calls: int, budget: Budget, keys: Keys) -> tuple[Transcripts, Transcripts | None]:
    """Runs up to their last release, ``calls`` of them, and a few that go on to their images: no bound from images is
    evidence for a claim, and they take nearly all of the time. Where every step is a release, the same runs."""
    if stage.name == PER_STEP:
        found = by_class(stage, budget.slow_runs, keys)
        return found, found if found.final.shape[1] else None
    few = by_class(stage, budget.slow_runs, keys.fold("images"))
    return by_class(stage, budget.runs, keys, releases=calls), few if few.final.shape[1] else None


def _of_query(
    subject: Subject, name: str, tallies: Mapping[int, QueryTally], looked_at: str, guests: Canaries
) -> Iterator[Finding]:
    """tallies: by round; looked_at: which these are, in words."""
    mechanism, relation = subject.plan.mechanisms[name], subject.plan.relation
    snapshot, tally = subject.snapshots[max(tallies)], tallies[max(tallies)]
    calls = max(tally.calls.values())
    stated = epsilon(sampled_event(mechanism, calls), subject.delta, relation=relation)  # type: ignore[arg-type]
    where = f"round {snapshot.round}, {calls} release(s) of {name!r}"
    statement = Statement(subject, subject.surface(name), stated, f"accounted for {where}", name)
    kappa, at = max((of.worst(relation)[0], t) for t, of in tallies.items())
    worst = tallies[at].worst(relation)[1]
    found_in = f"; worst, in round {at}, is {tallies[at].called(guests, worst)}{tallies[at].faults()}"
    searched = f"{looked_at}, {calls} release(s) of {name!r} in each, {len(guests)} crafted records{found_in}"
    yield statement.sensitivity(kappa, 2.0 if relation == "replace" else 1.0, len(guests), searched, sorted(tallies))
    worst = tally.worst(relation)[1]
    stage = QueryStage(subject.few_images(), snapshot, subject.shard, name, guests.x[worst])
    keys, budget = subject.keys.fold("runs", name), subject.budget
    if None not in tally.calls and any(image in stage.plan.method.uploads for image in IMAGES):
        found, final, what = *_runs(stage, calls, budget, keys), repr(guests.names[worst])
    else:
        final, what = None, tally.called(guests, tally.keeps)
        found = on_transcript(mechanism, tally.kept, budget.slow_runs, keys)
    note = f"{where} of a client that holds {what}, or nothing"
    yield from statement.statistical(found, note, final=final)
    event = sampled_event(mechanism, calls)
    yield curve_finding(statement, found.ratios[: found.runs], found.ratios[found.runs :], event, note)

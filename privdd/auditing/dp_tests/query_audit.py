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
from privdd.auditing.dp_tests.statement import ExaminedRounds, GuaranteeSubject, format_ranges
from privdd.core.rng import Keys
from privdd.core.types import UNKNOWN_CELL, class_of_cell
from privdd.federated.settings import GuaranteeBudget
from privdd.privacy.clipping import take_records
from privdd.privacy.mechanism import Mechanism

PER_STEP_QUERY = "synthetic_gradient"  # released separately at every step and for every class


def query_findings(subject: GuaranteeSubject, names: Sequence[str]) -> Iterator[Finding]:
    """T1, T2 and T3 of the queries ``names`` that the ledger accounts for."""
    protected = [name for name in names if subject.has_finite_epsilon(name)]
    rounds = {name: subject.client_rounds(name) for name in protected}
    guests = craft_guests(subject)
    base = draw_own_records(subject.shard, subject.keys, spare_label(subject.shard))
    history = subject.memory_history(base) if rounds else None
    chosen = _chosen_rounds(rounds)
    last_rounds = {examined_rounds.last for examined_rounds in rounds.values()}
    labels = sorted({*guests.y.tolist(), *base.y.tolist()})
    tallies = {}
    clients = list[int]()
    for t in chosen:
        keys = subject.keys.fold("t1", t)
        examined = ExaminedRound(subject.plan, subject.snapshots[t], subject.shard, keys, history)
        is_brief = t not in last_rounds
        tallies[t] = measure_sensitivity(examined, base, guests, labels, brief=is_brief)
        if t == chosen[-1]:
            clients = measure_other_clients(examined, base, guests, labels, tallies[t])
    clip_note = ""
    if clients:
        clip_note = (
            f"; of clients {format_ranges(clients)} only whether they clip alike in round "
            f"{chosen[-1]}"
        )
    for name, examined_rounds in rounds.items():
        by_round = {}
        for t, by_query in tallies.items():
            if name in by_query and by_query[name].changes:
                by_round[t] = by_query[name]
        if by_round:
            looked_at = examined_rounds.describe_rounds(sorted(by_round)) + clip_note
            yield from _findings_of_query(subject, name, by_round, looked_at, guests)
    yield from _findings_of_messages(subject, tallies)


def _chosen_rounds(rounds: Mapping[str, ExaminedRounds]) -> list[int]:
    """The rounds that are examined for any of the queries."""
    chosen = set[int]()
    for examined_rounds in rounds.values():
        chosen.update(examined_rounds.chosen)
    return sorted(chosen)


def _findings_of_messages(
    subject: GuaranteeSubject, tallies: Mapping[int, Mapping[str, SensitivityTally]]
) -> Iterator[Finding]:
    """One row for each message that says something of a record beside the releases: it is the one
    accused, and no release. tallies: by round and query."""
    notes: dict[str, str] = {}
    for t, by_query in tallies.items():
        for tally in by_query.values():
            new_notes = {
                message: f"round {t}: {says}" for message, says in tally.message_leaks.items()
            }
            notes = new_notes | notes
    for message, note in notes.items():
        yield subject.run_finding("t1_sensitivity", message, 1, note, {"refuted": True})


def craft_guests(subject: GuaranteeSubject) -> Canaries:
    """Crafted records: out-of-distribution ones in the commonest class, mislabelled ones, one alone
    in its class."""
    label = common_label(subject.shard)
    unusual = unusual_records(subject.shard, label, subject.keys)
    return join_canaries(unusual, lone_class_record(subject.shard, subject.keys))


def _ratio_runs(
    stage: QuerySetup, calls: int, budget: GuaranteeBudget, keys: Keys
) -> tuple[RatioTranscripts, RatioTranscripts | None]:
    """Runs up to their last release, ``calls`` of them, and a few that go on to their images.

    No bound from images is evidence for a claim, and they take nearly all of the time. If every
    step is a release, the same runs.
    """
    if stage.name == PER_STEP_QUERY:
        runs = runs_by_class(stage, budget.slow_runs, keys)
        return runs, _with_images(runs)
    with_images = runs_by_class(stage, budget.slow_runs, keys.fold("images"))
    runs = runs_by_class(stage, budget.runs, keys, releases=calls)
    return runs, _with_images(with_images)


def _with_images(runs: RatioTranscripts) -> RatioTranscripts | None:
    return runs if runs.final.shape[1] else None


def _findings_of_query(
    subject: GuaranteeSubject,
    name: str,
    tallies: Mapping[int, SensitivityTally],
    looked_at: str,
    guests: Canaries,
) -> Iterator[Finding]:
    """T1 of all rounds, T2 and T3 of the last one.

    Args:
        subject: the run.
        name: of the query.
        tallies: round -> what was measured.
        looked_at: which rounds these are, in words.
        guests: the crafted records.
    """
    mechanism = subject.plan.mechanisms[name]
    relation = subject.plan.relation
    snapshot = subject.snapshots[max(tallies)]
    tally = tallies[max(tallies)]
    calls = max(tally.calls.values())
    event = sampled_event(mechanism, calls)
    where = f"round {snapshot.round}, {calls} release(s) of {name!r}"
    statement = subject.statement(name, subject.proven_epsilon(event), f"accounted for {where}")
    kappa, worst_round = max((of.worst_guest(relation)[0], t) for t, of in tallies.items())
    worst_tally = tallies[worst_round]
    worst = worst_tally.worst_guest(relation)[1]
    seen_guests = set[int]()
    for round_tally in tallies.values():
        seen_guests.update(round_tally.changes)
    searched = (
        f"{looked_at}, {calls} release(s) of {name!r} in each, {len(seen_guests)} crafted "
        f"record(s); worst, in round {worst_round}, is "
        f"{worst_tally.name_guest(guests, worst)}{worst_tally.describe_faults()}"
    )
    yield statement.sensitivity_finding(kappa, len(seen_guests), searched, sorted(tallies))
    worst = tally.worst_guest(relation)[1]
    plan = subject.plan_with_few_images()
    stage = QuerySetup(plan, snapshot, subject.shard, name, guests.x[worst])
    keys = subject.keys.fold("runs", name)
    budget = subject.budget
    is_by_class = {None, UNKNOWN_CELL}.isdisjoint(map(class_of_cell, tally.calls))
    final = None
    if is_by_class and any(image in plan.method.uploads for image in IMAGE_UPLOADS):
        runs, final = _ratio_runs(stage, calls, budget, keys)
        what = repr(guests.names[worst])
    elif tally.contributions:
        runs = runs_on_transcript(mechanism, tally.contributions, budget.slow_runs, keys)
        what = tally.name_guest(guests, tally.recorded_guest)
    else:  # no crafted record's contribution is known
        return
    note = f"{where} of a client that holds {what}, or nothing"
    yield from statement.likelihood_ratio_findings(runs, note, final=final, event=event)


@dataclass
class _LargestChange:
    """What all records together change in a round.

    Attributes:
        changes: query -> the largest change of a release when all records go, in units.
        counts: query -> releases.
    """

    changes: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, release: RecordedRelease) -> None:
        name = release.name
        nobody = take_records(release.rows, slice(0))
        change = clean_numbers(mechanism, release.rows) - clean_numbers(mechanism, nobody)
        size = float(change.norm()) / sensitivity_unit(release.released)
        self.changes[name] = max(self.changes.get(name, 0.0), size)
        self.counts[name] = self.counts.get(name, 0) + 1


def client_query_findings(subject: GuaranteeSubject) -> Iterator[Finding]:
    """T1 if the unit is a client: one row for each query that the ledger accounts for, of some
    rounds that make it."""
    plan = subject.plan
    names = [name for name in plan.mechanisms if name in plan.method.queries]
    rounds = {
        name: subject.client_rounds(name) for name in names if subject.has_finite_epsilon(name)
    }
    measured = {t: _measure_largest_change(subject, t) for t in _chosen_rounds(rounds)}
    for name, examined_rounds in rounds.items():
        by_round = {t: change for t, change in measured.items() if name in change.changes}
        if not by_round:
            continue
        worst_round = max(by_round, key=lambda t: by_round[t].changes[name])
        worst = by_round[worst_round]
        calls = worst.counts[name]
        stated = subject.proven_epsilon(sampled_event(plan.mechanisms[name], calls))
        source = f"accounted for {calls} release(s) of {name!r}"
        statement = subject.statement(name, stated, source, "client")
        note = (
            f"{examined_rounds.describe_rounds(sorted(by_round))}, {calls} release(s) of {name!r} "
            f"in each, with all {len(subject.shard.train)} records or none; most in round "
            f"{worst_round}"
        )
        yield statement.sensitivity_finding(
            worst.changes[name], 1, note, sorted(by_round), allowed=1.0
        )


def _measure_largest_change(subject: GuaranteeSubject, round: int) -> _LargestChange:
    snapshot = subject.snapshots[round]
    change = _LargestChange()
    keys = subject.keys.fold("t1", "client", round)
    ctx = recording_context(subject.plan, round, keys, change)
    subject.plan.method.local(
        snapshot.broadcast, dict(snapshot.memory), subject.shard.client_data, ctx
    )
    return change

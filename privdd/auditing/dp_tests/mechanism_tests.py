"""T1, T2 and T3 for each kind of mechanism: queries, uploads and features of records, what whole
clients send, and the printed theorem."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import dp_accounting as dpa
import torch
from torch import Tensor

import privdd.auditing.dp_tests.likelihood_ratio_test as ratios
from attacks.canaries import Canaries, join_canaries
from attacks.certificates import gaussian_log_ratio
from attacks.types import Finding
from privdd.auditing.dp_tests.instrumentation import (
    MemoryHistory,
    RecordedRelease,
    SeenContributions,
    clean_numbers,
    common_label,
    copies_of_record,
    draw_own_records,
    flatten_tensors,
    lone_class_record,
    recording_context,
    sensitivity_unit,
    spare_label,
    unusual_records,
    value_before_noise,
    with_guests,
    with_records,
)
from privdd.auditing.dp_tests.sensitivity_test import (
    UNBOUNDED,
    ExaminedRound,
    SensitivityTally,
    change_of_others,
    measure_other_clients,
    measure_sensitivity,
    pair_with_guest,
    pair_without_record,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject, format_ranges
from privdd.core.rng import Keys
from privdd.core.types import UNKNOWN_CELL, Artifact, Records, Shard, State, Tensors, class_of_cell
from privdd.federated.channel import OutputLog, TranscriptEnded
from privdd.federated.settings import GuaranteeBudget
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.claims import DELTA, Claim, smallest_claim
from privdd.privacy.clipping import take_records
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms import AggregateClip, FeatureNoise
from privdd.privacy.noise import ZERO_NOISE, SeededNoise

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
            told = {message: f"round {t}: {says}" for message, says in tally.told.items()} | told
    for message, note in told.items():
        yield subject.run_finding("t1_sensitivity", message, 1, note, {"refuted": True})


def craft_guests(subject: GuaranteeSubject) -> Canaries:
    """Crafted records: out-of-distribution ones in the commonest class, mislabelled ones, one alone
    in its class."""
    label = common_label(subject.shard)
    odd = unusual_records(subject.shard, label, subject.keys)
    return join_canaries(odd, lone_class_record(subject.shard, subject.keys))


def _ratio_runs(
    stage: ratios.QuerySetup, calls: int, budget: GuaranteeBudget, keys: Keys
) -> tuple[ratios.RatioTranscripts, ratios.RatioTranscripts | None]:
    """Runs up to their last release, ``calls`` of them, and a few that go on to their images: no
    bound from images is evidence for a claim, and they take nearly all of the time. Where every
    step is a release, the same runs."""
    if stage.name == PER_STEP_QUERY:
        found = ratios.runs_by_class(stage, budget.slow_runs, keys)
        return found, found if found.final.shape[1] else None
    few = ratios.runs_by_class(stage, budget.slow_runs, keys.fold("images"))
    return ratios.runs_by_class(stage, budget.runs, keys, releases=calls), few if few.final.shape[
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
    event = ratios.sampled_event(mechanism, calls)
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
    stage = ratios.QuerySetup(
        subject.plan_with_few_images(), snapshot, subject.shard, name, guests.x[worst]
    )
    keys = subject.keys.fold("runs", name)
    budget = subject.budget
    by_class = {None, UNKNOWN_CELL}.isdisjoint(map(class_of_cell, tally.calls))
    if by_class and any(image in stage.plan.method.uploads for image in ratios.IMAGE_UPLOADS):
        found, final, what = *_ratio_runs(stage, calls, budget, keys), repr(guests.names[worst])
    elif not tally.kept:  # no crafted record's contribution is known
        return
    else:
        final = None
        what = tally.name_guest(guests, tally.keeps)
        found = ratios.runs_on_transcript(mechanism, tally.kept, budget.slow_runs, keys)
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
        stated = subject.accounted_epsilon(
            ratios.sampled_event(subject.plan.mechanisms[name], calls)
        )
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


MAX_RATIO_NUMBERS = (
    10**9
)  # noise values for T2 and T3, at most (half a minute), but never fewer than slow_runs runs
HUGE_UPDATE = 1e6  # times the client's own update: beyond any clip norm


def client_update_findings(subject: GuaranteeSubject, name: str) -> Iterator[Finding]:
    """T1, T2 and T3 of the mechanism set for the upload ``name``, whatever its class; the unit is a
    client. A mechanism that shows no value before its noise, or adds other noise than Gaussian,
    gets a row that says so."""
    looks = subject.client_rounds(name)
    rows = subject.own_releases(name)
    if not looks.chosen or not subject.has_finite_epsilon(name):
        return
    mechanism = subject.plan.mechanisms[name]
    relation = subject.plan.relation
    calls = sum(row.count for row in rows)
    event = rows[0].event
    whole = dpa.SelfComposedDpEvent(event, calls)
    source = f"accounted for {calls} update(s)"
    statement = subject.statement(name, subject.accounted_epsilon(whole), source, "client")
    at = {t: trained_updates(subject, subject.snapshots[t], name) for t in looks.chosen}
    earlier = {
        f"{says} in round {t}": update for t in looks.chosen[:-1] for says, update in at[t].items()
    }
    crafted = {**earlier, **crafted_updates(at[looks.chosen[-1]])}
    if not isinstance(event, dpa.GaussianDpEvent) or not value_before_noise(
        mechanism, next(iter(crafted.values()))
    ):
        why = (
            f"{type(mechanism).__name__} was not tested: that needs Gaussian noise and the "
            "value before it (exact)"
        )
        yield statement.untested_sensitivity(why)
        return
    tally = compare_updates(subject, subject.snapshots[looks.chosen[-1]], name, crafted)
    if tally.leak:
        note = f"{looks.describe_rounds(looks.chosen)}{tally.describe_faults()}"
        yield statement.sensitivity_finding(HUGE_UPDATE, len(crafted), note, looks.chosen, 1.0)
        return
    kappa, worst = tally.worst_guest(relation)
    what = list(crafted)[worst]
    worst_is = f"worst is {what!r}{tally.describe_faults()}"
    searched = f"{looks.describe_rounds(looks.chosen)}, {len(crafted)} crafted updates; {worst_is}"
    yield statement.sensitivity_finding(kappa, len(crafted), searched, looks.chosen)
    if not bool(torch.isfinite(clean_numbers(mechanism, crafted[what])).all()):
        return  # an infinite value has no likelihood ratio, and kappa has already shown the fault
    size = sum(t.numel() for t in crafted[what].values())
    count = max(
        subject.budget.slow_runs, min(subject.budget.runs, MAX_RATIO_NUMBERS // (2 * calls * size))
    )
    opposite = relation == "replace"
    pair = (
        crafted[what],
        {n: -t if opposite else torch.zeros_like(t) for n, t in crafted[what].items()},
    )
    runs = runs_of_updates(mechanism, *pair, calls, count, subject.keys.fold("runs", name))
    note = (
        f"{calls} noised update(s): {what!r} each time, or {'its opposite' if opposite else 'zero'}"
    )
    yield from statement.likelihood_ratio_findings(runs, note, event=whole)


def trained_updates(subject: GuaranteeSubject, snapshot: Snapshot, name: str) -> dict[str, Tensors]:
    """Name -> update: the client's own, and those of clients with other records."""
    own = subject.shard.train
    flipped = replace(own, y=(own.y + 1) % subject.shard.classes)
    few = own.take(torch.zeros(min(4, len(own)), dtype=torch.long))
    white = replace(few, x=torch.ones_like(few.x))
    held = {"the client": own, "all labels wrong": flipped, "copies of a white record": white}
    return {says: _train_update(subject, snapshot, name, records) for says, records in held.items()}


def crafted_updates(trained: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """The trained updates, and some that no training yields."""
    base = trained["the client"]
    first = next(iter(base))
    spike: State = {n: torch.zeros_like(t) for n, t in base.items()}
    spike[first].view(-1)[0] = HUGE_UPDATE
    return {
        **trained,
        "the client's, a million times": {n: t * HUGE_UPDATE for n, t in base.items()},
        "and its opposite": {n: t * -HUGE_UPDATE for n, t in base.items()},
        "one huge number": spike,
        "every number alike": {n: torch.full_like(t, HUGE_UPDATE) for n, t in base.items()},
        "infinite": {n: torch.full_like(t, torch.inf) for n, t in base.items()},
        "not a number": {
            n: torch.where(spike[n] > 0, torch.nan, t * HUGE_UPDATE) for n, t in base.items()
        },
    }


def _train_update(
    subject: GuaranteeSubject, snapshot: Snapshot, name: str, records: Records
) -> Tensors:
    """The update that the method's own local work hands to the channel."""
    shard = with_records(subject.shard, records)
    ctx = subject.plan.client_context(snapshot.round, subject.plan.victim)
    upload, _ = subject.plan.method.local(snapshot.broadcast, dict(snapshot.memory), shard, ctx)
    return {n: t.detach() for n, t in upload[name].value.items()}


def compare_updates(
    subject: GuaranteeSubject, snapshot: Snapshot, name: str, crafted: Mapping[str, Tensors]
) -> SensitivityTally:
    """Each crafted update through the channel, against zero in its place: changes in units, and the
    drawn noise."""
    outputs = [
        _send_update(subject, snapshot, name, number, update)
        for number, update in enumerate(crafted.values())
    ]
    if (
        len(
            {
                str({n: tuple(t.shape) for n, t in sorted(update.items())})
                for update in crafted.values()
            }
        )
        > 1
    ):
        return SensitivityTally(
            leak=f"the size of {name!r} depends on which records the client has"
        )
    nothing = {n: torch.zeros_like(t) for n, t in next(iter(crafted.values())).items()}
    mechanism = subject.plan.mechanisms[name]
    zero = clean_numbers(mechanism, nothing)
    clean = [clean_numbers(mechanism, update) for update in crafted.values()]
    moved = torch.stack([(one - zero) / sensitivity_unit(o) for one, o in zip(clean, outputs)])
    changes = moved.nan_to_num(nan=HUGE_UPDATE)
    tally = SensitivityTally()
    tally.changes = dict(enumerate(changes.norm(dim=1).tolist()))
    tally.pairs = float(torch.cdist(changes, changes).max())
    for output in outputs:
        gap = (flatten_tensors(output.value) - flatten_tensors(output.exact or {})).double()
        tally.add_noise(gap / output.noise_std)
    return tally


def _send_update(
    subject: GuaranteeSubject, snapshot: Snapshot, name: str, number: int, update: Tensors
) -> Output:
    plan = replace(subject.plan, keys=subject.keys.fold("t1", name, number))
    log = OutputLog()
    ctx = plan.client_context(snapshot.round, plan.victim, observer=log)
    ctx.noise = SeededNoise(plan.keys.fold("noise").torch())
    plan.channel.send({name: Artifact(update)}, ctx)
    return log.outputs[0][1]


def runs_of_updates(
    mechanism: Mechanism, update: Tensors, other: Tensors, calls: int, runs: int, keys: Keys
) -> ratios.RatioTranscripts:
    """R runs of ``calls`` noised updates of one client, and R runs of one that sends ``other`` each
    time."""
    noise = SeededNoise(keys.fold("noise").torch())
    inside = clean_numbers(mechanism, update)
    outside = clean_numbers(mechanism, other)
    found: Tensor = torch.zeros(2 * runs, dtype=torch.float64)
    for run in range(2 * runs):
        for _ in range(calls):
            output = mechanism(update if run < runs else other, noise)
            value = flatten_tensors(output.value).unsqueeze(0)
            found[run] += gaussian_log_ratio(value, inside, outside, output.noise_std)[0]
    return ratios.RatioTranscripts(found, torch.zeros(2 * runs, 0))


def feature_findings(subject: GuaranteeSubject, name: str) -> Iterator[Finding]:
    """T1, T2 and T3 of ``FeatureNoise`` set for the upload ``name``. Nothing where no bound is
    stated, or where a row is not one record's: such a release counts as unprotected."""
    mechanism = subject.plan.mechanisms[name]
    looks = subject.client_rounds(name)
    is_read = subject.plan.method.audit_hooks.rows_are_records() and looks.chosen
    if (
        not isinstance(mechanism, FeatureNoise)
        or not is_read
        or mechanism.broadcast_batch is not None
    ):
        return
    guests = craft_guests(subject)
    sent = partial(_send_features, subject, name, guests)
    by_round = {t: (sent(t, True), sent(t, False)) for t in looks.chosen}
    outputs = by_round[looks.chosen[-1]]
    if any(inside.clip_norm is None for inside, _ in by_round.values()):
        return
    bounded = subject.has_finite_epsilon(name)
    source = (
        "accounted" if bounded else "accounted for the noise alone, with the generator held fixed"
    )
    # of the noise alone: what the generator learnt from the records is not in it
    statement = subject.statement(name, subject.accounted_epsilon(outputs[0].event), source)
    for t, (inside, outside) in by_round.items():
        if len(_rows_before_noise(inside)) != len(_rows_before_noise(outside)):
            note = f"round {t}: the size of {name!r} tells how many records there are"
            yield statement.sensitivity_finding(UNBOUNDED, len(guests), note, looks.chosen, 1.0)
            return
    relation = subject.plan.relation
    tallies = {t: _compare_rows(mechanism, *both, len(guests)) for t, both in by_round.items()}
    kappa, at = max((tally.worst_guest(relation)[0], t) for t, tally in tallies.items())
    worst = tallies[at].worst_guest(relation)[1]
    where = (
        f"{looks.describe_rounds(looks.chosen)}, {mechanism.copies} copy or copies of each record"
    )
    found_in = f"; worst, in round {at}, is {guests.names[worst]!r}{tallies[at].describe_faults()}"
    searched = f"{where}, {len(guests)} crafted records{found_in}"
    yield statement.sensitivity_finding(kappa, len(guests), searched, looks.chosen)
    worst = tallies[looks.chosen[-1]].worst_guest(relation)[1]
    row = _rows_before_noise(outputs[0])[len(_rows_before_noise(outputs[0])) - len(guests) + worst]
    noise = SeededNoise(subject.keys.fold("runs", name).torch())
    runs = ratios.runs_of_features(mechanism, row, subject.budget.runs, noise)
    note = f"{where}: {guests.names[worst]!r}, or nothing"
    event = outputs[0].event if bounded else None
    yield from statement.likelihood_ratio_findings(runs, note, final=runs, event=event)


def _rows_before_noise(output: Output) -> Tensor:
    return (output.exact or {})["x"]


def _send_features(
    subject: GuaranteeSubject, name: str, guests: Canaries, round: int, present: bool
) -> Output:
    """What the channel noises: guests as they are, or zeroed out under the same ids and labels;
    gone under add_remove."""
    plan = subject.plan
    snapshot = subject.snapshots[round]
    base = draw_own_records(subject.shard, subject.keys, spare_label(subject.shard))
    whole = with_guests(base, guests)
    nulls = None
    if not present and subject.plan.relation == "add_remove":
        whole = base
    elif not present:
        gone = whole.take(torch.arange(len(base), len(whole)))
        whole = base
        nulls = Records(torch.zeros_like(gone.x), gone.y, gone.ids)
    shard = replace(subject.shard, train=whole, nulls=nulls)
    keys = replace(plan, keys=subject.keys.fold("t1", name))
    log = OutputLog()
    ctx = keys.client_context(snapshot.round, plan.victim, observer=log)
    upload, _ = plan.method.local(snapshot.broadcast, dict(snapshot.memory), shard, ctx)
    plan.channel.send({name: upload[name]}, ctx)
    return next(output for key, output in log.outputs if key == name)


def _compare_rows(
    mechanism: FeatureNoise, inside: Output, outside: Output, guests: int
) -> SensitivityTally:
    """Row by row: how far each guest's row moves when it is zeroed out, and whether any other row
    moves."""
    order = 2 if mechanism.distribution == "gaussian" else 1
    norm = float(inside.clip_norm or 1.0)
    rows, zeroed = (_rows_before_noise(output).flatten(1) for output in (inside, outside))
    changes = (rows - zeroed).norm(p=order, dim=1) / norm
    tally = SensitivityTally()
    tally.changes = {j: float(value) for j, value in enumerate(changes[len(rows) - guests :])}
    tally.moved = change_of_others([rows[:-guests] / norm], [zeroed[:-guests] / norm])
    last = rows[len(rows) - guests :]
    tally.pairs = float(torch.cdist(last, last, p=order).max()) / norm
    copied = inside.value["x"].reshape(mechanism.copies, *rows.shape)
    for copy, std in zip(copied, mechanism.copy_stds(inside.clip_norm)):
        tally.add_noise(
            (copy - rows) / (std if mechanism.distribution == "gaussian" else std * 2**0.5)
        )
    return tally


SINGLE_NOISE_EVENTS = (dpa.GaussianDpEvent, dpa.LaplaceDpEvent)
DIM_BRIGHTNESS = 0.1  # brightness of a record that another outweighs


@dataclass(frozen=True)
class _NeighbouringSets:
    """Two data sets that differ in one record, in words."""

    says: str
    out: Shard
    inside: Shard


def record_upload_findings(subject: GuaranteeSubject, name: str) -> Iterator[Finding]:
    """One row for the upload ``name``, of some rounds that send it; nothing where the ledger does
    not count it."""
    looks = subject.client_rounds(name)
    rows = subject.own_releases(name)
    if not looks.chosen or not subject.has_finite_epsilon(name):
        return
    history = subject.memory_history(subject.shard.train.take([0]))
    mechanism = subject.plan.mechanisms[name]
    event = rows[0].event
    statement = subject.statement(
        name, subject.accounted_epsilon(event), f"accounted for one {name!r}"
    )
    pairs = list(_neighbouring_sets(subject))
    found = [
        (_measure_change(history, subject.keys, t, name, one), t, one.says)
        for t in looks.chosen
        for one in pairs
    ]
    if any(kappa is None for kappa, *_ in found):
        why = (
            f"{type(mechanism).__name__} was not tested: that needs the value before its "
            "noise (exact), and one noise multiplier"
        )
        yield statement.untested_sensitivity(why)
        return
    last = looks.chosen[-1]
    across = _clip_ball_diameter(subject, subject.snapshots[last], name)
    found += [(across, last, "an upload and its opposite, for it is clipped as a whole")]
    kappa, at, says = max((kappa or 0.0, t, says) for kappa, t, says in found)
    searched = f"{looks.describe_rounds(looks.chosen)}, {len(pairs) + 1} pairs of data sets"
    note = f"{searched}; worst, in round {at}, is {says}"
    yield statement.sensitivity_finding(kappa, len(found), note, looks.chosen)


def _neighbouring_sets(subject: GuaranteeSubject) -> Iterator[_NeighbouringSets]:
    plan = subject.plan
    shard = subject.shard
    guests = craft_guests(subject)
    one = Records(guests.x[:1], guests.y[:1], torch.zeros(1, dtype=torch.long))
    if plan.relation == "replace":
        crafted = _exchange_first(shard, one)
        yield _NeighbouringSets(
            f"{guests.names[0]!r} in place of a record", with_records(shard, shard.train), crafted
        )
        negative = _exchange_first(shard, replace(one, x=1 - one.x))
        yield _NeighbouringSets(f"{guests.names[0]!r} in place of its negative", negative, crafted)
        return
    yield _NeighbouringSets(
        f"{guests.names[0]!r} added", *pair_with_guest(plan, shard, shard.train, one)
    )
    if len(shard.train) > 1:
        # the last: one that is zeroed out comes after the others, where it is released row by row
        yield _NeighbouringSets(
            "the last record left out", *pair_without_record(plan, shard, len(shard.train) - 1)
        )
    first = replace(
        shard.train.take([0]), x=DIM_BRIGHTNESS * one.x.to(shard.train.x), y=one.y.to(shard.train.y)
    )
    for label in range(1, min(shard.classes, 3)):
        against = replace(one, y=(one.y + label) % shard.classes)
        says = "a record that outweighs the only other one, of another class"
        yield _NeighbouringSets(
            says, *pair_with_guest(plan, with_records(shard, first), first, against)
        )


def _exchange_first(shard: Shard, one: Records) -> Shard:
    """The client with another record in place of its first."""
    own = shard.train
    other = replace(own.take([0]), x=one.x.to(own.x), y=one.y.to(own.y))
    return with_records(shard, Records.concat([other, own.take(range(1, len(own)))]))


def _clip_ball_diameter(subject: GuaranteeSubject, snapshot: Snapshot, name: str) -> float:
    """The widest that the ball is to which uploads are clipped, in units; 0 for rows of records,
    and where nothing is clipped."""
    plan = subject.plan
    mechanism = subject.plan.mechanisms[name]
    examined = ExaminedRound(plan, snapshot, subject.shard, subject.keys.fold("t1", name))
    run = examined.run_forced(subject.shard, SeenContributions({}), None)
    value = run.upload[name].value if run.upload and name in run.upload else {}
    held = {len(subject.shard.train) + more for more in (0, len(subject.shard.nulls or ()))}
    if not value or all(t.ndim and len(t) in held for t in value.values()):
        return 0.0
    ends = [
        mechanism({n: UNBOUNDED * sign * t for n, t in value.items()}, ZERO_NOISE)
        for sign in (1.0, -1.0)
    ]
    one, other = (flatten_tensors(end.exact or {}).double() for end in ends)
    if not float(one.norm()) < UNBOUNDED / 2 * float(flatten_tensors(value).norm()):
        return 0.0
    return float((one - other).norm()) / sensitivity_unit(ends[0])


def _measure_change(
    history: MemoryHistory, keys: Keys, round: int, name: str, of: _NeighbouringSets
) -> float | None:
    """How far the value before noise moves, in units; beyond all bounds where its size does; None =
    not to be seen."""
    plan = history.plan
    examined = ExaminedRound(plan, history.snapshots[round], of.out, keys.fold("t1", name), history)
    play = examined.run_forced
    starts = [examined.snapshot_of(shard) for shard in (of.out, of.inside)]
    out = play(of.out, SeenContributions({}), None, starts[0])
    inside = play(of.inside, SeenContributions({}), out.outputs, starts[1])
    if (
        inside.problem
        or out.upload is None
        or inside.upload is None
        or (name in out.upload) != (name in inside.upload)
    ):
        return UNBOUNDED
    if name not in out.upload:
        return 0.0
    before, after = (
        plan.mechanisms[name](run.upload[name].value, ZERO_NOISE)
        for run in (out, inside)
        if run.upload
    )
    if not before.exact or not after.exact or not isinstance(before.event, SINGLE_NOISE_EVENTS):
        return None
    one = flatten_tensors(before.exact)
    other = flatten_tensors(after.exact)
    if one.shape != other.shape:
        return UNBOUNDED
    order = 1 if isinstance(before.event, dpa.LaplaceDpEvent) else 2
    return float((other.double() - one.double()).norm(p=order)) / sensitivity_unit(before)


EXCHANGE_UNITS = 2.0  # a guest takes the place of a copy in the batch: two contributions change


def printed_theorem_findings(subject: GuaranteeSubject, name: str) -> Iterator[Finding]:
    """T1, T2 and T3 of ``AggregateClip`` set for the query ``name``, at the papers' own delta."""
    subject = replace(subject, delta=DELTA)
    snapshot = subject.snapshots[max(subject.snapshots)]
    plan = subject.plan
    label = common_label(subject.shard)
    mechanism = plan.mechanisms[name]
    ctx = plan.client_context(snapshot.round, plan.victim)
    steps = plan.method.audit_hooks.steps(snapshot.broadcast, subject.shard.client_data, ctx)
    if steps.untestable:
        printed = subject.statement(name, math.inf, "the paper's theorem")
        yield printed.untested_sensitivity(
            f"the printed theorem was not tested: {steps.untestable}"
        )
        return
    own = subject.shard.train
    base = own.x[own.y == label][0]
    law = ratios.MatchingStepLaw(mechanism, steps.settings.batch, 1.0)  # type: ignore[arg-type]
    generator = subject.keys.fold("search").torch()
    ipc = plan.method.audit_hooks.images_per_class()
    odd = unusual_records(subject.shard, label, subject.keys)
    guests, found = ratios.search_guests(steps, law, base, odd, ipc, generator)
    taken = steps.settings.iterations
    count, claim = copies_within_theorem(
        plan, subject.shard, base, label, law, taken, subject.delta
    )
    statement = subject.statement(name, claim.epsilon or 0.0, claim.source)
    kappa = change_along_method(plan, snapshot, subject, base, guests.x[0], label, law.batch)
    where = f"round {snapshot.round}, clip {law.mechanism.clip_norm:g}, batches of {law.batch}"
    note = (
        f"{where}, copies of one record, {len(guests)} crafted records; worst is "
        f"{guests.names[0]!r}"
    )
    searched = f"{note} (searched: {float(found[0]):.3g})"
    yield statement.sensitivity_finding(
        kappa, len(guests), searched, [snapshot.round], EXCHANGE_UNITS
    )
    inside = ratios.MatchingStepLaw(law.mechanism, law.batch, min(1.0, law.batch / (count + 1)))
    few = min(ipc, subject.budget.images)
    keys = subject.keys.fold("runs").torch()
    budget = subject.budget
    runs = ratios.run_transcripts(steps, inside, base, guests.x[0], budget.runs, few, keys)
    times = taken * inside.probability**2
    given = f"{where}, {count} copies and {guests.names[0]!r} or not, T q^2 = {times:.2g}"
    yield from statement.likelihood_ratio_findings(runs, given, final=runs)


def copies_within_theorem(
    plan: Plan,
    shard: Shard,
    base: Tensor,
    label: int,
    law: ratios.MatchingStepLaw,
    steps: int,
    delta: float,
) -> tuple[int, Claim]:
    """How many copies meet the theorem's condition T q**2 <= epsilon / 2, and the claim for them.
    epsilon / 2 is ln(1/delta) / sigma**2, or the same with log10 as in a paper's table; the smaller
    claim is tested."""

    def claim_at_logarithm(logarithm: float) -> tuple[int, Claim]:
        rate = math.sqrt(logarithm / steps) / law.mechanism.noise_multiplier
        count = max(law.batch, math.ceil(law.batch / rate * (1 + 1e-9)))
        held = [with_records(shard, copies_of_record(base, label, count))]
        claim = smallest_claim(plan.method.audit_hooks.claims(plan, held))
        if claim is None:
            who = type(plan.method).__name__
            raise ValueError(f"method={who}: it runs aggregate_clip and claims no epsilon for it")
        return count, claim

    natural = claim_at_logarithm(math.log(1 / delta))
    decimal = claim_at_logarithm(math.log10(1 / delta))
    return min(natural, decimal, key=lambda found: found[1].epsilon or 0.0)


def change_along_method(
    plan: Plan,
    snapshot: Snapshot,
    subject: GuaranteeSubject,
    base: Tensor,
    guest: Tensor,
    label: int,
    batch: int,
) -> float:
    """Largest change of the mean before noise, in units of C / |B|, through the method's own local
    work."""
    copied = copies_of_record(base, label, batch)
    other = copied.x.clone()
    other[-1] = guest
    runs: list[list[Tensor]] = []
    forced = None
    units: list[float] = []
    for x in (copied.x, other):
        seen: list[Tensor] = []

        def keep_value(
            mechanism: Mechanism, heeded: RecordedRelease, into: list[Tensor] = seen
        ) -> None:
            into.append(flatten_tensors(heeded.released.exact or {}))
            if isinstance(mechanism, AggregateClip):
                units.append(heeded.released.noise_std / mechanism.noise_multiplier)

        ctx = recording_context(
            plan, snapshot.round, subject.keys.fold("t1"), keep_value, [label], forced=forced
        )
        held = with_records(subject.shard, replace(copied, x=x))
        with suppress(TranscriptEnded):
            plan.method.local(snapshot.broadcast, {}, held, ctx)
        forced = forced or ctx.outputs
        runs.append(seen)
    return max(float((a - b).norm()) / u for a, b, u in zip(*runs, units))

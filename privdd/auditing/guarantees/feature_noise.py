"""Guarantees for features that are noised record by record.

T1 compares the rows that the feature map gives crafted records (guests) with those of zeroed-out ones; T2 and T3
run the mechanism on one record or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attacks.canaries import Canaries
from attacks.types import Finding
from privdd.auditing.guarantees.accounted_curve import curve_finding
from privdd.auditing.guarantees.crafted_records import own_records, spare_label, with_guests
from privdd.auditing.guarantees.presence import HUGE, moved
from privdd.auditing.guarantees.queries import guests_of
from privdd.auditing.guarantees.sensitivity import QueryTally
from privdd.auditing.guarantees.statement import Statement, Subject
from privdd.auditing.guarantees.transcripts import of_features
from privdd.core.types import Records
from privdd.privacy.accounting import epsilon
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import FeatureNoise
from privdd.privacy.noise import SeededNoise


def feature_findings(subject: Subject, name: str) -> Iterator[Finding]:
    """T1, T2 and T3 of ``FeatureNoise`` set for the upload ``name``.

    Nothing where no bound is stated, or where a row is not one record's: such a release counts as unprotected.
    """
    mechanism, looks = subject.plan.mechanisms[name], subject.rounds(name)
    if not isinstance(mechanism, FeatureNoise) or not looks.chosen or mechanism.broadcast_batch is not None:
        return
    if not subject.plan.method.rows_are_records():
        return
    guests = guests_of(subject)
    sent = partial(_sent, subject, name, guests)
    by_round = {t: (sent(t, True), sent(t, False)) for t in looks.chosen}
    outputs = by_round[looks.chosen[-1]]
    if any(inside.clip_norm is None for inside, _ in by_round.values()):
        return
    source = "accounted" if subject.spends(name) else "accounted for the noise alone, with the generator held fixed"
    statement = Statement(subject, subject.surface(name), _stated(subject, outputs[0]), source, name)
    for t, (inside, outside) in by_round.items():
        if len(_rows(inside)) != len(_rows(outside)):
            note = f"round {t}: the size of {name!r} tells how many records there are"
            yield statement.sensitivity(HUGE, 1.0, len(guests), note, looks.chosen)
            return
    relation = subject.plan.relation
    tallies = {t: _compared(mechanism, *both, len(guests)) for t, both in by_round.items()}
    kappa, at = max((tally.worst(relation)[0], t) for t, tally in tallies.items())
    worst = tallies[at].worst(relation)[1]
    where = f"{looks.words(looks.chosen)}, {mechanism.copies} copy or copies of each record"
    found_in = f"; worst, in round {at}, is {guests.names[worst]!r}{tallies[at].faults()}"
    searched = f"{where}, {len(guests)} crafted records{found_in}"
    yield statement.sensitivity(kappa, 2.0 if relation == "replace" else 1.0, len(guests), searched, looks.chosen)
    worst = tallies[looks.chosen[-1]].worst(relation)[1]
    row = _rows(outputs[0])[len(_rows(outputs[0])) - len(guests) + worst]
    noise = SeededNoise(subject.keys.fold("runs", name).torch())
    runs = of_features(mechanism, row, subject.budget.runs, noise)
    note = f"{where}: {guests.names[worst]!r}, or nothing"
    yield from statement.statistical(runs, note, final=runs)
    if subject.spends(name):
        ratios = runs.ratios
        yield curve_finding(statement, ratios[: runs.runs], ratios[runs.runs :], outputs[0].event, note)


def _rows(output: Output) -> Tensor:
    return (output.exact or {})["x"]


def _stated(subject: Subject, output: Output) -> float:
    """The accountant's epsilon of the noise alone: what the generator learnt from the records is not in it."""
    return epsilon(output.event, subject.delta, relation=subject.plan.relation)  # type: ignore[arg-type]


def _sent(subject: Subject, name: str, guests: Canaries, round: int, present: bool) -> Output:
    """What the channel noises: guests as they are, or zeroed out under the same ids and labels; gone under add_remove."""
    plan, snapshot = subject.plan, subject.snapshots[round]
    base = own_records(subject.shard, subject.keys, spare_label(subject.shard))
    whole = with_guests(base, guests)
    nulls = None
    if not present and subject.plan.relation == "add_remove":
        whole = base
    elif not present:
        gone = whole.take(torch.arange(len(base), len(whole)))
        whole, nulls = base, Records(torch.zeros_like(gone.x), gone.y, gone.ids)
    shard = replace(subject.shard, train=whole, nulls=nulls)
    keys = replace(plan, keys=subject.keys.fold("t1", name))
    ctx = keys.context(snapshot.round, plan.victim, exact=[])
    upload, _ = plan.method.local(snapshot.broadcast, dict(snapshot.memory), shard, ctx)
    plan.channel.send({name: upload[name]}, ctx)
    return next(output for key, output in ctx.exact or [] if key == name)


def _compared(mechanism: FeatureNoise, inside: Output, outside: Output, guests: int) -> QueryTally:
    """Row by row: how far each guest's row moves when it is zeroed out, and whether any other row moves."""
    order = 2 if mechanism.distribution == "gaussian" else 1
    norm = float(inside.clip_norm or 1.0)
    rows, zeroed = (_rows(output).flatten(1) for output in (inside, outside))
    changes = (rows - zeroed).norm(p=order, dim=1) / norm
    tally = QueryTally()
    tally.changes = {j: float(value) for j, value in enumerate(changes[len(rows) - guests :])}
    tally.moved = moved([rows[:-guests] / norm], [zeroed[:-guests] / norm])
    last = rows[len(rows) - guests :]
    tally.pairs = float(torch.cdist(last, last, p=order).max()) / norm
    copied = inside.value["x"].reshape(mechanism.copies, *rows.shape)
    for copy, std in zip(copied, mechanism.stds(inside.clip_norm)):
        scale = std if mechanism.distribution == "gaussian" else std * 2**0.5
        tally.residual += float(((copy - rows) / scale).double().square().sum())
        tally.numbers += rows.numel()
    return tally

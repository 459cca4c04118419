"""T1, T2 and T3 of uploads that are one noised row a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attacks.canaries import Canaries
from attacks.types import Finding
from privdd.auditing.dp_tests.crafted_records import (
    draw_own_records,
    spare_label,
    with_guests,
)
from privdd.auditing.dp_tests.likelihood_ratios import (
    runs_of_features,
)
from privdd.auditing.dp_tests.presence_trials import change_of_others
from privdd.auditing.dp_tests.query_audit import craft_guests
from privdd.auditing.dp_tests.sensitivity_audit import (
    UNBOUNDED,
    SensitivityTally,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.auditing.dp_tests.upload_audit import record_upload_findings
from privdd.core.types import Records
from privdd.federated.channel import OutputLog
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import FeatureNoise
from privdd.privacy.noise import SeededNoise


def feature_findings(subject: GuaranteeSubject, name: str) -> Iterator[Finding]:
    """T1, T2 and T3 of ``FeatureNoise`` set for the upload ``name``; T1 alone of another mechanism
    that releases rows. Nothing if no bound is stated, or if a row is not one record's: such a
    release counts as unprotected."""
    mechanism = subject.plan.mechanisms[name]
    looks = subject.client_rounds(name)
    if not isinstance(mechanism, FeatureNoise):
        yield from record_upload_findings(subject, name)
        return
    is_read = subject.plan.method.audit_hooks.rows_are_records() and looks.chosen
    if not is_read or mechanism.broadcast_batch is not None:
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
    statement = subject.statement(name, subject.proven_epsilon(outputs[0].event), source)
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
    runs = runs_of_features(mechanism, row, subject.budget.runs, noise)
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

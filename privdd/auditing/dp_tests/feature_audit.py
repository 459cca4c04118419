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
    send = partial(_send_features, subject, name, guests)
    outputs = {t: (send(t, True), send(t, False)) for t in looks.chosen}
    if any(present.clip_norm is None for present, _ in outputs.values()):
        return
    last_output, _ = outputs[looks.chosen[-1]]
    is_bounded = subject.has_finite_epsilon(name)
    source = "accounted"
    if not is_bounded:  # what the generator learnt from the records is not in it
        source = "accounted for the noise alone, with the generator held fixed"
    statement = subject.statement(name, subject.proven_epsilon(last_output.event), source)
    for t, (present, absent) in outputs.items():
        if len(_rows_before_noise(present)) != len(_rows_before_noise(absent)):
            note = f"round {t}: the size of {name!r} reveals the number of records"
            yield statement.sensitivity_finding(UNBOUNDED, len(guests), note, looks.chosen, 1.0)
            return
    relation = subject.plan.relation
    tallies = {}
    for t, (present, absent) in outputs.items():
        tallies[t] = _compare_rows(mechanism, present, absent, len(guests))
    kappa, worst_round = max((tally.worst_guest(relation)[0], t) for t, tally in tallies.items())
    worst_tally = tallies[worst_round]
    worst = worst_tally.worst_guest(relation)[1]
    where = (
        f"{looks.describe_rounds(looks.chosen)}, {mechanism.copies} copy or copies of each record"
    )
    searched = (
        f"{where}, {len(guests)} crafted records; worst, in round {worst_round}, is "
        f"{guests.names[worst]!r}{worst_tally.describe_faults()}"
    )
    yield statement.sensitivity_finding(kappa, len(guests), searched, looks.chosen)
    worst = tallies[looks.chosen[-1]].worst_guest(relation)[1]
    rows = _rows_before_noise(last_output)
    row = rows[len(rows) - len(guests) + worst]
    noise = SeededNoise(subject.keys.fold("runs", name).torch())
    runs = runs_of_features(mechanism, row, subject.budget.runs, noise)
    note = f"{where}: {guests.names[worst]!r}, or nothing"
    event = last_output.event if is_bounded else None
    yield from statement.likelihood_ratio_findings(runs, note, final=runs, event=event)


def _rows_before_noise(output: Output) -> Tensor:
    return (output.exact or {})["x"]


def _send_features(
    subject: GuaranteeSubject, name: str, guests: Canaries, round: int, present: bool
) -> Output:
    """What the channel noises: guests as they are, or zeroed out under the same ids and labels;
    gone under add_remove."""
    snapshot = subject.snapshots[round]
    base = draw_own_records(subject.shard, subject.keys, spare_label(subject.shard))
    with_all = with_guests(base, guests)
    nulls = None
    if not present and subject.plan.relation != "add_remove":
        absent = with_all.take(torch.arange(len(base), len(with_all)))
        nulls = Records(torch.zeros_like(absent.x), absent.y, absent.ids)
    shard = replace(subject.shard, train=with_all if present else base, nulls=nulls)
    plan = replace(subject.plan, keys=subject.keys.fold("t1", name))
    log = OutputLog()
    ctx = plan.client_context(snapshot.round, plan.victim, observer=log)
    upload, _ = plan.method.local(snapshot.broadcast, dict(snapshot.memory), shard.client_data, ctx)
    plan.channel.send({name: upload[name]}, ctx)
    return next(output for key, output in log.outputs if key == name)


def _compare_rows(
    mechanism: FeatureNoise, present: Output, absent: Output, guests: int
) -> SensitivityTally:
    """Row by row: how far each guest's row moves when it is zeroed out, and whether any other row
    moves.

    |r - r'|_p over the clip norm, p = 2 for Gaussian and 1 for Laplace noise. A residual of Laplace
    noise is in units of its standard deviation, b sqrt(2).
    """
    is_gaussian = mechanism.distribution == "gaussian"
    order = 2 if is_gaussian else 1
    norm = float(present.clip_norm or 1.0)
    rows = _rows_before_noise(present).flatten(1)
    zeroed = _rows_before_noise(absent).flatten(1)
    changes = (rows - zeroed).norm(p=order, dim=1) / norm
    tally = SensitivityTally()
    first_guest = len(rows) - guests
    tally.changes = {guest: float(change) for guest, change in enumerate(changes[first_guest:])}
    tally.moved = change_of_others([rows[:-guests] / norm], [zeroed[:-guests] / norm])
    guest_rows = rows[first_guest:]
    tally.pairs = float(torch.cdist(guest_rows, guest_rows, p=order).max()) / norm
    copies = present.value["x"].reshape(mechanism.copies, *rows.shape)
    for copy, scale in zip(copies, mechanism.copy_stds(present.clip_norm)):
        std = scale if is_gaussian else scale * 2**0.5
        tally.add_noise((copy - rows) / std)
    return tally

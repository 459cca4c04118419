"""T1 of uploads that are noised as a whole, where the unit is a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from attacks.types import Finding
from privdd.auditing.dp_tests.clean_values import (
    flatten_tensors,
    sensitivity_unit,
)
from privdd.auditing.dp_tests.contributions import SeenContributions
from privdd.auditing.dp_tests.crafted_records import (
    with_records,
)
from privdd.auditing.dp_tests.forced_runs import ExaminedRound
from privdd.auditing.dp_tests.memory_history import MemoryHistory
from privdd.auditing.dp_tests.neighbouring_pairs import pair_with_guest, pair_without_record
from privdd.auditing.dp_tests.query_audit import craft_guests
from privdd.auditing.dp_tests.sensitivity_audit import (
    UNBOUNDED,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard
from privdd.federated.simulation import Snapshot
from privdd.privacy.noise import ZERO_NOISE
from privdd.privacy.noise_laws import noise_law

DIM_BRIGHTNESS = 0.1  # brightness of a record that another outweighs


@dataclass(frozen=True)
class _NeighbouringSets:
    """Two data sets that differ in one record, in words."""

    says: str
    absent: Shard
    present: Shard


def record_upload_findings(subject: GuaranteeSubject, name: str) -> Iterator[Finding]:
    """T1: one row for the upload ``name``, of some rounds that send it; nothing if the ledger does
    not count it."""
    looks = subject.client_rounds(name)
    rows = subject.own_releases(name)
    if not looks.chosen or not subject.has_finite_epsilon(name):
        return
    history = subject.memory_history(subject.shard.train.take([0]))
    mechanism = subject.plan.mechanisms[name]
    stated = subject.proven_epsilon(rows[0].event)
    statement = subject.statement(name, stated, f"accounted for one {name!r}")
    pairs = list(_neighbouring_sets(subject))
    changes: list[tuple[float, int, str]] = []
    is_visible = True
    for t in looks.chosen:
        for pair in pairs:
            kappa = _measure_change(history, subject.keys, t, name, pair)
            if kappa is None:
                is_visible = False
            changes.append((kappa or 0.0, t, pair.says))
    if not is_visible:
        why = (
            f"{type(mechanism).__name__} was not tested: that needs the value before its "
            "noise (exact), and one noise multiplier"
        )
        yield statement.untested_sensitivity(why)
        return
    last = looks.chosen[-1]
    diameter = _clip_ball_diameter(subject, subject.snapshots[last], name)
    changes.append((diameter, last, "an upload and its opposite, for it is clipped as a whole"))
    kappa, worst_round, says = max(changes)
    note = (
        f"{looks.describe_rounds(looks.chosen)}, {len(pairs) + 1} pairs of data sets; worst, in "
        f"round {worst_round}, is {says}"
    )
    yield statement.sensitivity_finding(kappa, len(changes), note, looks.chosen)


def _neighbouring_sets(subject: GuaranteeSubject) -> Iterator[_NeighbouringSets]:
    plan = subject.plan
    shard = subject.shard
    records = shard.train
    guests = craft_guests(subject)
    name = guests.names[0]
    guest = Records(guests.x[:1], guests.y[:1], torch.zeros(1, dtype=torch.long))
    if plan.relation == "replace":
        crafted = _exchange_first(shard, guest)
        unchanged = with_records(shard, records)
        yield _NeighbouringSets(f"{name!r} in place of a record", unchanged, crafted)
        negative = _exchange_first(shard, replace(guest, x=1 - guest.x))
        yield _NeighbouringSets(f"{name!r} in place of its negative", negative, crafted)
        return
    yield _NeighbouringSets(f"{name!r} added", *pair_with_guest(plan, shard, records, guest))
    if len(records) > 1:
        # A record that is zeroed out comes after the others, if it is released row by row.
        pair = pair_without_record(plan, shard, len(records) - 1)
        yield _NeighbouringSets("the last record left out", *pair)
    dim = replace(
        records.take([0]), x=DIM_BRIGHTNESS * guest.x.to(records.x), y=guest.y.to(records.y)
    )
    for label in range(1, min(shard.classes, 3)):
        outweighing = replace(guest, y=(guest.y + label) % shard.classes)
        pair = pair_with_guest(plan, with_records(shard, dim), dim, outweighing)
        says = "a record that outweighs the only other one, of another class"
        yield _NeighbouringSets(says, *pair)


def _exchange_first(shard: Shard, record: Records) -> Shard:
    """The client with another record in place of its first."""
    records = shard.train
    exchanged = replace(records.take([0]), x=record.x.to(records.x), y=record.y.to(records.y))
    return with_records(shard, Records.concat([exchanged, records.take(range(1, len(records)))]))


def _clip_ball_diameter(subject: GuaranteeSubject, snapshot: Snapshot, name: str) -> float:
    """|M(c u) - M(-c u)| before noise, for an upload u and a huge c, in units: the diameter of the
    ball to which uploads are clipped; 0 for rows of records, and if nothing is clipped."""
    plan = subject.plan
    shard = subject.shard
    mechanism = plan.mechanisms[name]
    examined = ExaminedRound(plan, snapshot, shard, subject.keys.fold("t1", name))
    run = examined.run_forced(shard, SeenContributions({}), None)
    if run.upload and name in run.upload:
        value = run.upload[name].value
    else:
        value = {}
    row_counts = {len(shard.train), len(shard.train) + len(shard.nulls or ())}
    is_rows = all(tensor.ndim and len(tensor) in row_counts for tensor in value.values())
    if not value or is_rows:
        return 0.0
    huge = {key: UNBOUNDED * tensor for key, tensor in value.items()}
    opposite = {key: UNBOUNDED * -1.0 * tensor for key, tensor in value.items()}
    output = mechanism(huge, ZERO_NOISE)
    numbers = flatten_tensors(output.exact or {}).double()
    opposite_output = mechanism(opposite, ZERO_NOISE)
    opposite_numbers = flatten_tensors(opposite_output.exact or {}).double()
    if not float(numbers.norm()) < UNBOUNDED / 2 * float(flatten_tensors(value).norm()):
        return 0.0
    return float((numbers - opposite_numbers).norm()) / sensitivity_unit(output)


def _measure_change(
    history: MemoryHistory, keys: Keys, round: int, name: str, pair: _NeighbouringSets
) -> float | None:
    """How far the value before noise moves, in units and in the norm of the law of its noise;
    beyond all bounds if its size does; None: not to be seen."""
    plan = history.plan
    snapshot = history.snapshots[round]
    examined = ExaminedRound(plan, snapshot, pair.absent, keys.fold("t1", name), history)
    absent_start = examined.snapshot_of(pair.absent)
    present_start = examined.snapshot_of(pair.present)
    absent = examined.run_forced(pair.absent, SeenContributions({}), None, absent_start)
    present = examined.run_forced(
        pair.present, SeenContributions({}), absent.outputs, present_start
    )
    if present.problem or absent.upload is None or present.upload is None:
        return UNBOUNDED
    if (name in absent.upload) != (name in present.upload):
        return UNBOUNDED
    if name not in absent.upload:
        return 0.0
    mechanism = plan.mechanisms[name]
    before = mechanism(absent.upload[name].value, ZERO_NOISE)
    after = mechanism(present.upload[name].value, ZERO_NOISE)
    law = noise_law(before.event)
    if not before.exact or not after.exact or law is None:
        return None
    numbers = flatten_tensors(before.exact)
    numbers_after = flatten_tensors(after.exact)
    if numbers.shape != numbers_after.shape:
        return UNBOUNDED
    change = (numbers_after.double() - numbers.double()).norm(p=law.norm_order)
    return float(change) / sensitivity_unit(before)

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
        name, subject.proven_epsilon(event), f"accounted for one {name!r}"
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
    law = noise_law(before.event)
    if not before.exact or not after.exact or law is None:
        return None
    one = flatten_tensors(before.exact)
    other = flatten_tensors(after.exact)
    if one.shape != other.shape:
        return UNBOUNDED
    change = (other.double() - one.double()).norm(p=law.norm_order)
    return float(change) / sensitivity_unit(before)

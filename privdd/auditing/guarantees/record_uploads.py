"""T1 for uploads that a mechanism of one's own is said to protect record by record.

A record is in the client's data or not; the method's own local work makes the upload both times, and what the
mechanism makes of it before noise may move by one unit. A mechanism that clips the upload as a whole lets one record
move it from one end of the ball to the other, whatever it does to the records at hand: nothing else bounds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import dp_accounting as dpa
import torch

from attacks.types import Adversary, Finding
from privdd.auditing.guarantees.contributions import Seen
from privdd.auditing.guarantees.crafted_records import holding
from privdd.auditing.guarantees.presence import HUGE, absent, pair, played
from privdd.auditing.guarantees.queries import guests_of
from privdd.auditing.guarantees.recording_context import Silence, flat, unit
from privdd.auditing.guarantees.statement import Statement, Subject
from privdd.auditing.non_interference import History
from privdd.core.keys import Keys
from privdd.core.types import Records, Shard
from privdd.federated.simulation import Snapshot
from privdd.privacy.accounting import epsilon

SINGLE_NOISE = (dpa.GaussianDpEvent, dpa.LaplaceDpEvent)
DIM = 0.1  # brightness of a record that another outweighs


@dataclass(frozen=True)
class _Neighbours:
    """Two data sets that differ in one record, in words."""

    says: str
    out: Shard
    inside: Shard


def record_upload_findings(subject: Subject, name: str) -> Iterator[Finding]:
    """One row for the upload ``name``, of some rounds that send it; nothing where the ledger does not count it."""
    looks = subject.rounds(name)
    rows = [r for r in subject.ledger.releases if r.name == name and r.client == subject.plan.victim]
    if not looks.chosen or not subject.spends(name):
        return
    history = subject.history(subject.shard.train.take([0]))
    mechanism, event = subject.plan.mechanisms[name], rows[0].event
    stated = epsilon(event, subject.delta, relation=subject.plan.relation)  # type: ignore[arg-type]
    statement = Statement(subject, subject.surface(name), stated, f"accounted for one {name!r}", name)
    pairs = list(_neighbours(subject))
    found = [(_moved(history, subject.keys, t, name, one), t, one.says) for t in looks.chosen for one in pairs]
    if any(kappa is None for kappa, *_ in found):
        why = f"{type(mechanism).__name__} was not tested: that needs the value before its noise (exact), and one noise multiplier"
        yield statement.finding("t1_sensitivity", Adversary.ANALYST, n=0, note=why)
        return
    last = looks.chosen[-1]
    across = _across(subject, subject.snapshots[last], name)
    found += [(across, last, "an upload and its opposite, for it is clipped as a whole")]
    kappa, at, says = max((kappa or 0.0, t, says) for kappa, t, says in found)
    allowed = 2.0 if subject.plan.relation == "replace" else 1.0
    note = f"{looks.words(looks.chosen)}, {len(pairs) + 1} pairs of data sets; worst, in round {at}, is {says}"
    yield statement.sensitivity(kappa, allowed, len(found), note, looks.chosen)


def _neighbours(subject: Subject) -> Iterator[_Neighbours]:
    plan, shard, guests = subject.plan, subject.shard, guests_of(subject)
    one = Records(guests.x[:1], guests.y[:1], torch.zeros(1, dtype=torch.long))
    if plan.relation == "replace":
        crafted = _in_place(shard, one)
        yield _Neighbours(f"{guests.names[0]!r} in place of a record", holding(shard, shard.train), crafted)
        yield _Neighbours(
            f"{guests.names[0]!r} in place of its negative", _in_place(shard, replace(one, x=1 - one.x)), crafted
        )
        return
    yield _Neighbours(f"{guests.names[0]!r} added", *pair(plan, shard, shard.train, one))
    if len(shard.train) > 1:
        # the last: one that is zeroed out comes after the others, where it is released row by row
        yield _Neighbours("the last record left out", *absent(plan, shard, len(shard.train) - 1))
    first = replace(shard.train.take([0]), x=DIM * one.x.to(shard.train.x), y=one.y.to(shard.train.y))
    for label in range(1, min(shard.classes, 3)):
        against = replace(one, y=(one.y + label) % shard.classes)
        says = "a record that outweighs the only other one, of another class"
        yield _Neighbours(says, *pair(plan, holding(shard, first), first, against))


def _in_place(shard: Shard, one: Records) -> Shard:
    """The client with another record in place of its first."""
    own = shard.train
    other = replace(own.take([0]), x=one.x.to(own.x), y=one.y.to(own.y))
    return holding(shard, Records.concat([other, own.take(range(1, len(own)))]))


def _across(subject: Subject, snapshot: Snapshot, name: str) -> float:
    """The widest that the ball is to which uploads are clipped, in units; 0 for rows of records, and where nothing is clipped."""
    plan, mechanism = subject.plan, subject.plan.mechanisms[name]
    run = played(plan, snapshot, subject.shard, Seen({}), subject.keys.fold("t1", name), None)
    value = run.upload[name].value if run.upload and name in run.upload else {}
    held = {len(subject.shard.train) + more for more in (0, len(subject.shard.nulls or ()))}
    if not value or all(t.ndim and len(t) in held for t in value.values()):
        return 0.0
    ends = [mechanism({n: HUGE * sign * t for n, t in value.items()}, Silence()) for sign in (1.0, -1.0)]
    one, other = (flat(end.exact or {}).double() for end in ends)
    if not float(one.norm()) < HUGE / 2 * float(flat(value).norm()):
        return 0.0
    return float((one - other).norm()) / unit(ends[0])


def _moved(history: History, keys: Keys, round: int, name: str, of: _Neighbours) -> float | None:
    """How far the value before noise moves, in units; beyond all bounds where its size does; None = not to be seen."""
    plan, keys = history.plan, keys.fold("t1", name)
    out = played(plan, history.before(round, of.out), of.out, Seen({}), keys, None)
    inside = played(plan, history.before(round, of.inside), of.inside, Seen({}), keys, out.outputs)
    if inside.problem or out.upload is None or inside.upload is None or (name in out.upload) != (name in inside.upload):
        return HUGE
    if name not in out.upload:
        return 0.0
    before, after = (plan.mechanisms[name](run.upload[name].value, Silence()) for run in (out, inside) if run.upload)
    if not before.exact or not after.exact or not isinstance(before.event, SINGLE_NOISE):
        return None
    one, other = flat(before.exact), flat(after.exact)
    if one.shape != other.shape:
        return HUGE
    order = 1 if isinstance(before.event, dpa.LaplaceDpEvent) else 2
    return float((other.double() - one.double()).norm(p=order)) / unit(before)

"""T1 for queries whose mechanisms say that they protect a whole client.

The client is there with all of its records, or with none: what the value before noise moves then, in units of what
the stated noise allows, is compared with one unit. Clipping record by record allows as many units as there are records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import dp_accounting as dpa

from attacks.types import Finding
from privdd.auditing.guarantees.recording_context import Heeded, exact, flat, unit, witness
from privdd.auditing.guarantees.statement import Statement, Subject
from privdd.privacy.accounting import epsilon
from privdd.privacy.mechanism import Mechanism


@dataclass
class _Moved:
    """Query -> the largest change of a release when all records go, in units, and how many releases were seen."""

    most: dict[str, float] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, heeded: Heeded) -> None:
        nobody = {n: t[:0] for n, t in heeded.rows.items()}
        change = flat(exact(mechanism, heeded.rows)) - flat(exact(mechanism, nobody))
        name = heeded.name
        self.most[name] = max(self.most.get(name, 0.0), float(change.norm()) / unit(heeded.released))
        self.seen[name] = self.seen.get(name, 0) + 1


def client_query_findings(subject: Subject) -> Iterator[Finding]:
    """One row for each query that the ledger accounts for, of some rounds that make it."""
    asked = [name for name in subject.plan.mechanisms if name in subject.plan.method.queries and subject.spends(name)]
    looks = {name: subject.rounds(name) for name in asked}
    rounds = {t: _moved(subject, t) for t in sorted({t for look in looks.values() for t in look.chosen})}
    for name, look in looks.items():
        seen = {t: moved for t, moved in rounds.items() if name in moved.most}
        if not seen:
            continue
        at = max(seen, key=lambda t: seen[t].most[name])
        mechanism, calls, relation = subject.plan.mechanisms[name], seen[at].seen[name], subject.plan.relation
        event = dpa.SelfComposedDpEvent(mechanism.event, calls)
        stated = epsilon(event, subject.delta, relation=relation)  # type: ignore[arg-type]
        source = f"accounted for {calls} release(s) of {name!r}"
        statement = Statement(subject, subject.surface(name), stated, source, name, "client")
        with_all = f"with all {len(subject.shard.train)} records or none; most in round {at}"
        note = f"{look.words(sorted(seen))}, {calls} release(s) of {name!r} in each, {with_all}"
        yield statement.sensitivity(seen[at].most[name], 1.0, 1, note, sorted(seen))


def _moved(subject: Subject, round: int) -> _Moved:
    snapshot, moved = subject.snapshots[round], _Moved()
    ctx = witness(subject.plan, round, subject.keys.fold("t1", "client", round), observe=moved)
    subject.plan.method.local(snapshot.broadcast, dict(snapshot.memory), subject.shard, ctx)
    return moved

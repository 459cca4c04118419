"""Non-interference: what leaves a client depends on its records through what its mechanisms released, and on nothing else.

A client's rounds run on its records and on others, memories made anew from the first round on, with the first run's
mechanism outputs in both. Then everything that claims to be protected, or public, must come out the same, bit by bit:
the values, the order, names, types and shapes of tensors, what mechanisms are asked, and what ledger rows say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import dp_accounting as dpa

from privdd.core.types import Received, Shard, State, Tensors, Values
from privdd.federated.channel import POST_PROCESSING, TranscriptEnded, digest
from privdd.federated.noise_record import Watch
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.ledger import FREE
from privdd.privacy.mechanism import Mechanism, Output, Row

Form = tuple[tuple[str, str, tuple[int, ...]], ...]  # name, type and shape of tensors, in their order

ORDER = "the order of what is sent depends on the records"


def form(value: Tensors) -> Form:
    """All of a message but its numbers."""
    return tuple((name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in value.items())


@dataclass
class FormWatch(Watch):
    """Notes of each protected release which query it answers, for which cell, and its form."""

    forms: list[tuple[str, str | None, Form]] = field(default_factory=list)

    def released(self, mechanism: Mechanism, name: str, output: Output, *given: Any) -> None:
        if not isinstance(output.event, dpa.NonPrivateDpEvent) and all(output.flags.values()):
            self.forms.append((name, given[0] if given else None, form(output.value)))

    def sampled(self, *given: Any) -> None:
        """Who is drawn does not matter: queries are answered alike."""


@dataclass(frozen=True)
class Turn:
    """One round of one client: what was sent and entered, what it keeps, and what its mechanisms released."""

    received: Received
    rows: list[Row]
    memory: State
    outputs: list[Tensors]
    releases: list[tuple[str, str | None, Form]]

    @property
    def message(self) -> list[tuple[str, Form]]:
        """What is sent and promises something, in its order."""
        rows = self.rows[len(self.rows) - len(self.received.values) :]
        return [(row.name, form(self.received.values[row.name])) for row in promised(rows)]


def take_turn(
    plan: Plan, round: int, broadcast: Values, memory: State, shard: Shard, transcript: Sequence[Tensors] | None = None
) -> Turn:
    """One client's round; transcript: what its queries are answered. Raises TranscriptEnded where it asks for more."""
    watch = FormWatch(round, shard.client, False)
    ctx = plan.context(round, shard.client, transcript=transcript, watch=watch)
    upload, memory = plan.method.local(broadcast, dict(memory), shard, ctx)
    received, rows = plan.channel.send(upload, ctx)
    return Turn(received, rows, {n: t.detach() for n, t in memory.items()}, list(ctx.outputs), watch.forms)


def promised(rows: Sequence[Row]) -> list[Row]:
    """Rows that promise something; digests of what mechanisms have not noised, which are the same twice."""
    kept = [row for row in rows if row.nonprivate_reason is None]
    return [row if isinstance(row.event, FREE) else replace(row, digest="") for row in kept]


def differences(one: Turn, other: Turn) -> Iterator[str]:
    """What tells the records of two turns with the same mechanism outputs apart, in words."""
    asked = [[(name, cell) for name, cell, _ in turn.releases] for turn in (one, other)]
    before, after = promised(one.rows), promised(other.rows)
    if asked[0] != asked[1]:
        yield "how often mechanisms are applied, or in which order, depends on the records"
        return
    names = [[row.name for row in rows] for rows in (before, after)]
    if names[0] != names[1]:
        lone = sorted(set(names[0]) ^ set(names[1]))
        yield f"whether {lone[0]!r} is sent, or is private, depends on the records" if lone else ORDER
        return
    for row, again in zip(before, after):
        differing = [f.name for f in fields(Row) if getattr(row, f.name) != getattr(again, f.name)]
        if isinstance(row.event, FREE) and differing:
            claim = "private" if row.why == POST_PROCESSING else "public"
            yield f"{row.name!r} claims to be {claim} and depends on the records"
        elif differing:
            yield f"the ledger row of {row.name!r} tells about the records, in {', '.join(differing)}"
    told = [name for (name, _, a), (_, _, b) in zip(one.releases, other.releases) if a != b]
    told += [name for (name, a), (_, b) in zip(one.message, other.message) if a != b]
    for name in dict.fromkeys(told):
        yield f"the order, types or shapes of the tensors of {name!r} depend on the records"


@dataclass(frozen=True)
class Told:
    """What a round told about the records. with_other: the name of the data set that showed it; broken: the method did not
    run on that data, which is not looked at any further."""

    round: int
    with_other: str
    says: str
    broken: bool = False


def interference(
    plan: Plan, snapshots: Mapping[int, Snapshot], shard: Shard, others: Mapping[str, tuple[Shard, Collection[int]]]
) -> Iterator[Told]:
    """Everything that the client's rounds tell of its records.

    others: by their name, other data of the client and the rounds that are run with it; all rounds up to the last of
    these, from the first, where the client remembers. Where a method says that a round's upload does not read what is
    remembered, the other client remembers nothing.
    """
    wanted, linked = {name: set(rounds) for name, (_, rounds) in others.items()}, linked_rounds(plan, snapshots)
    if linked:
        wanted = {name: {t for t in snapshots if t <= max(rounds, default=-1)} for name, rounds in wanted.items()}
    memories: dict[str | None, State] = {}
    for round in sorted(set(snapshots) & set[int]().union(*wanted.values())):
        broadcast = snapshots[round].broadcast
        own = take_turn(plan, round, broadcast, memories.get(None, snapshots[round].memory), shard)
        for name in [name for name in wanted if round in wanted[name]]:
            try:
                again = take_turn(plan, round, broadcast, memories.get(name, {}), others[name][0], own.outputs)
            except TranscriptEnded:
                yield Told(round, name, "how often mechanisms are applied depends on the records")
                return
            except Exception as problem:  # of a method of one's own, on data that it was not written for
                yield Told(round, name, f"{type(problem).__name__}: {problem}", broken=True)
                wanted[name] = set()
                continue
            for says in differences(own, again):
                yield Told(round, name, says)
            memories |= {name: again.memory} if linked else {}
        memories |= {None: own.memory} if linked else {}


def linked_rounds(plan: Plan, snapshots: Mapping[int, Snapshot]) -> bool:
    """Whether what the client keeps decides what it sends later."""
    return any(plan.method.remembers(t, snapshot.memory) for t, snapshot in snapshots.items() if snapshot.memory)


@dataclass(frozen=True)
class History:
    """What other data would have left in the client's memory. transcripts: round -> what queries were answered with; {} where
    memory does not depend on the data, and is the run's own."""

    plan: Plan
    snapshots: Mapping[int, Snapshot]
    transcripts: Mapping[int, Sequence[Tensors]] = field(default_factory=dict)

    def before(self, round: int, shard: Shard) -> Snapshot:
        """The round as a client with this data begins it."""
        if not self.transcripts:
            return self.snapshots[round]
        memory: State = {}
        for t in sorted(t for t in self.snapshots if t < round):
            turn = take_turn(self.plan, t, self.snapshots[t].broadcast, memory, shard, self.transcripts[t])
            memory = turn.memory
        return replace(self.snapshots[round], memory=memory)


def history_of(plan: Plan, snapshots: Mapping[int, Snapshot], shard: Shard, other: Shard) -> History:
    """The client's history; other: data that tells whether memory depends on it."""
    transcripts, same = dict[int, Sequence[Tensors]](), True
    memory: State = {}
    others: State = {}
    for t in sorted(snapshots) if linked_rounds(plan, snapshots) else ():
        own = take_turn(plan, t, snapshots[t].broadcast, memory, shard)
        try:
            again = take_turn(plan, t, snapshots[t].broadcast, others, other, own.outputs)
        except TranscriptEnded:  # that is a fault of its own
            return History(plan, snapshots)
        transcripts[t], memory, others = own.outputs, own.memory, again.memory
        same = same and digest(memory) == digest(others)
    return History(plan, snapshots, {} if same else transcripts)

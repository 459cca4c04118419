"""What one client's round sends, notes and releases, and how it differs on other data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import dp_accounting as dpa

from privdd.core.types import Received, Shard, State, Tensors, Values
from privdd.federated.channel import (
    POST_PROCESSING,
    TranscriptEnded,
)
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.ledger import UNPROTECTED_EVENTS
from privdd.privacy.mechanism import LedgerRow, Mechanism, Output

ORDER_DEPENDS = "the order of the messages depends on the records"


# name, type and shape of tensors, in their order
MessageForm = tuple[tuple[str, str, tuple[int, ...]], ...]


def message_form(value: Tensors) -> MessageForm:
    """All of a message but its numbers."""
    return tuple((name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in value.items())


@dataclass
class ReleaseFormLog:
    """Notes of each protected release which query it answers, for which cell, and its form."""

    forms: list[tuple[str, str | None, MessageForm]] = field(default_factory=list)

    def on_release(
        self, mechanism: Mechanism, name: str, output: Output | None, *given: Any
    ) -> None:
        if (
            output
            and not isinstance(output.event, dpa.NonPrivateDpEvent)
            and all(output.flags.values())
        ):
            self.forms.append((name, given[0] if given else None, message_form(output.value)))

    def on_sample(self, *given: Any) -> None:
        """The sampling coins are not replaced: the queries' answers do not depend on them."""


@dataclass(frozen=True)
class RoundTrace:
    """One round of one client: what was sent and entered, what it keeps, and what its mechanisms
    released."""

    received: Received
    rows: list[LedgerRow]
    memory: State
    outputs: list[Tensors]
    releases: list[tuple[str, str | None, MessageForm]]

    @property
    def protected_message(self) -> list[tuple[str, MessageForm]]:
        """What is sent and promises something, in its order."""
        rows = self.rows[len(self.rows) - len(self.received.values) :]
        return [
            (row.name, message_form(self.received.values[row.name])) for row in protected_rows(rows)
        ]


def trace_round(
    plan: Plan,
    round: int,
    broadcast: Values,
    memory: State,
    shard: Shard,
    transcript: Sequence[Tensors] | None = None,
) -> RoundTrace:
    """One client's round; transcript: what its queries are answered. Raises TranscriptEnded where
    it asks for more."""
    log = ReleaseFormLog()
    ctx = plan.client_context(round, shard.client, transcript=transcript, observer=log)
    upload, memory = plan.method.local(broadcast, dict(memory), shard.client_data, ctx)
    received, rows = plan.channel.send(upload, ctx)
    return RoundTrace(
        received, rows, {n: t.detach() for n, t in memory.items()}, list(ctx.outputs), log.forms
    )


def protected_rows(rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Rows that promise something; digests of what mechanisms have not noised, which are the same
    twice."""
    promises = []
    for row in rows:
        if row.nonprivate_reason is None:
            is_exact = isinstance(row.event, UNPROTECTED_EVENTS)
            promises.append(row if is_exact else replace(row, digest=""))
    return promises


@dataclass(frozen=True)
class MessageLeak:
    """What tells two data sets apart, in words. message: the name of the message or query that
    tells it; "" = all together."""

    says: str
    message: str = ""


def compare_traces(first: RoundTrace, second: RoundTrace) -> Iterator[MessageLeak]:
    """What tells the records of two rounds with the same mechanism outputs apart."""
    queries = [(name, cell) for name, cell, _ in first.releases]
    if queries != [(name, cell) for name, cell, _ in second.releases]:
        yield MessageLeak(
            "how often mechanisms are applied, or in which order, depends on the records"
        )
        return
    rows = protected_rows(first.rows)
    second_rows = protected_rows(second.rows)
    names = [row.name for row in rows]
    second_names = [row.name for row in second_rows]
    if names != second_names:
        lone = sorted(set(names) ^ set(second_names))
        if lone:
            says = f"whether {lone[0]!r} is sent, or is private, depends on the records"
            yield MessageLeak(says, lone[0])
        else:
            yield MessageLeak(ORDER_DEPENDS, "")
        return
    for row, second_row in zip(rows, second_rows):
        yield from _compare_rows(row, second_row)
    differing = []
    for (name, _, form), (_, _, second_form) in zip(first.releases, second.releases):
        if form != second_form:
            differing.append(name)
    for (name, form), (_, second_form) in zip(first.protected_message, second.protected_message):
        if form != second_form:
            differing.append(name)
    for name in dict.fromkeys(differing):
        yield MessageLeak(
            f"the order, types or shapes of the tensors of {name!r} depend on the records", name
        )


def _compare_rows(row: LedgerRow, second: LedgerRow) -> Iterator[MessageLeak]:
    """What two ledger rows of one message say of the records."""
    differing = []
    for column in fields(LedgerRow):
        if getattr(row, column.name) != getattr(second, column.name):
            differing.append(column.name)
    if not differing:
        return
    if isinstance(row.event, UNPROTECTED_EVENTS):
        claim = "private" if row.why == POST_PROCESSING else "public"
        says = f"{row.name!r} claims to be {claim} and depends on the records"
    else:
        columns = ", ".join(differing)
        says = f"the ledger row of {row.name!r} depends on the records, in {columns}"
    yield MessageLeak(says, row.name)


@dataclass(frozen=True)
class RecordDependence:
    """What a round told about the records. with_other: the name of the data set that showed it;
    broken: the method did not run on that data, which is not examined any further; message: as of
        ``MessageLeak``."""

    round: int
    with_other: str
    says: str
    broken: bool = False
    message: str = ""


def find_interference(
    plan: Plan,
    snapshots: Mapping[int, Snapshot],
    shard: Shard,
    others: Mapping[str, tuple[Shard, Collection[int]]],
) -> Iterator[RecordDependence]:
    """Everything that the client's rounds tell of its records. others: by their name, other data of
    the client and the rounds that are run with it; all rounds up to the last of these, from the
    first, where the client remembers. Where a method says that a round's upload does not read what
    is remembered, the other client remembers nothing."""
    wanted = {name: set(rounds) for name, (_, rounds) in others.items()}
    linked = has_linked_rounds(plan, snapshots)
    if linked:
        wanted = {
            name: {t for t in snapshots if t <= max(rounds, default=-1)}
            for name, rounds in wanted.items()
        }
    memories: dict[str | None, State] = {}
    for round in sorted(set(snapshots) & set[int]().union(*wanted.values())):
        broadcast = snapshots[round].broadcast
        alone = trace_round(
            plan, round, broadcast, memories.get(None, snapshots[round].memory), shard
        )
        for name in [name for name in wanted if round in wanted[name]]:
            try:
                again = trace_round(
                    plan, round, broadcast, memories.get(name, {}), others[name][0], alone.outputs
                )
            except TranscriptEnded:
                yield RecordDependence(
                    round, name, "how often mechanisms are applied depends on the records"
                )
                return
            except (
                Exception
            ) as problem:  # of a method of one's own, on data that it was not written for
                yield RecordDependence(
                    round, name, f"{type(problem).__name__}: {problem}", broken=True
                )
                wanted[name] = set()
                continue
            for leak in compare_traces(alone, again):
                yield RecordDependence(round, name, leak.says, message=leak.message)
            if linked:
                memories |= {name: again.memory}
        if linked:
            memories |= {None: alone.memory}


def has_linked_rounds(plan: Plan, snapshots: Mapping[int, Snapshot]) -> bool:
    """Whether what the client keeps decides what it sends later."""
    uses_memory = plan.method.audit_hooks.upload_uses_memory
    return any(
        uses_memory(t, snapshot.memory) for t, snapshot in snapshots.items() if snapshot.memory
    )

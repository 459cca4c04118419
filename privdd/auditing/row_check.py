"""Do ledger rows tell about the records? They travel beside what is sent, and no mechanism protects them.

A client's round runs twice, on its records and on far fewer, with the first run's mechanism outputs in both. Every row
with a finite epsilon, or declared public, must come out the same, whatever a mechanism writes into it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from privdd.core.types import Records, Shard, State, Tensors, Values
from privdd.federated.channel import POST_PROCESSING
from privdd.federated.simulation import Plan, Task, client_step
from privdd.privacy.mechanism import Mechanism, Output, Row


class _Longer(Exception):
    """More mechanism outputs are asked for than the first run had."""


@dataclass
class _Tape:
    """Mechanism outputs in order: kept in the first run, given out again in the second."""

    kept: list[Tensors] = field(default_factory=list)
    played: int | None = None

    def of(self, output: Output) -> Output:
        if self.played is None:
            self.kept.append(output.value)
            return output
        if self.played == len(self.kept):
            raise _Longer
        self.played += 1
        return replace(output, value=self.kept[self.played - 1])


def _taped(mechanism: Mechanism, tape: _Tape) -> Mechanism:
    """The same mechanism, its outputs on the tape: a copy of a class of the same name, for methods may ask for it."""
    kind = type(mechanism)

    def call(self: Any, value: Tensors, noise: Any) -> Output:
        return tape.of(kind.__call__(self, value, noise))

    made = copy.copy(mechanism)
    object.__setattr__(
        made, "__class__", type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    )
    return made


def _fewer(shard: Shard) -> Shard:
    """The last third of the records, with the labels of the others: zeroed out, as the relation of the check has it."""
    gone = shard.train.take(range(len(shard.train) - len(shard.train) // 3))
    kept = shard.train.take(range(len(gone), len(shard.train)))
    nulls = replace(gone, x=torch.zeros_like(gone.x))
    return replace(shard.with_train(kept), nulls=nulls if shard.nulls is None else Records.concat([nulls, shard.nulls]))


def telling_rows(plan: Plan, round: int, broadcast: Values, memory: State, shard: Shard) -> Iterator[str]:
    """One line for each fault of the rows of a client's round."""
    tape = _Tape()
    taped = replace(plan, mechanisms={name: _taped(m, tape) for name, m in plan.mechanisms.items()})
    first = _promised(client_step(Task(taped, round, shard.client, broadcast, memory, shard))[1])
    tape.played = 0
    try:
        second = _promised(client_step(Task(taped, round, shard.client, broadcast, memory, _fewer(shard)))[1])
    except _Longer:
        second = []
    if len(first) != len(second) or tape.played != len(tape.kept):
        yield f"round {round}: how often mechanisms are applied, or what their rows promise, depends on the records"
        return
    for one, two in zip(first, second):
        names = [f.name for f in fields(Row) if getattr(one, f.name) != getattr(two, f.name)]
        if names:
            yield f"round {round}: the ledger row of {one.name!r} tells about the records, in {', '.join(names)}"


def _promised(rows: list[Row]) -> list[Row]:
    """Rows that promise something; digests of what is computed from the mechanisms' outputs, which are the same twice."""
    promised = [row for row in rows if row.nonprivate_reason is None]
    return [row if row.why == POST_PROCESSING else replace(row, digest="") for row in promised]

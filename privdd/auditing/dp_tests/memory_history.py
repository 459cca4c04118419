"""What other data would have left in a client's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from privdd.auditing.dp_tests.round_traces import has_linked_rounds, trace_round
from privdd.core.types import Shard, State, Tensors
from privdd.federated.channel import (
    TranscriptEnded,
    digest_tensors,
)
from privdd.federated.simulation import Plan, Snapshot


@dataclass(frozen=True)
class MemoryHistory:
    """What other data would have left in the client's memory. transcripts: round -> what queries
    were answered with; {} where memory does not depend on the data, and is the run's own."""

    plan: Plan
    snapshots: Mapping[int, Snapshot]
    transcripts: Mapping[int, Sequence[Tensors]] = field(default_factory=dict)

    def snapshot_before(self, round: int, shard: Shard) -> Snapshot:
        """The round as a client with this data begins it."""
        if not self.transcripts:
            return self.snapshots[round]
        memory: State = {}
        for t in sorted(t for t in self.snapshots if t < round):
            turn = trace_round(
                self.plan, t, self.snapshots[t].broadcast, memory, shard, self.transcripts[t]
            )
            memory = turn.memory
        return replace(self.snapshots[round], memory=memory)


def memory_history_of(
    plan: Plan, snapshots: Mapping[int, Snapshot], shard: Shard, other: Shard
) -> MemoryHistory:
    """The client's history; other: data that tells whether memory depends on it."""
    transcripts = dict[int, Sequence[Tensors]]()
    is_same = True
    memory: State = {}
    other_memory: State = {}
    for t in sorted(snapshots) if has_linked_rounds(plan, snapshots) else ():
        traced = trace_round(plan, t, snapshots[t].broadcast, memory, shard)
        try:
            again = trace_round(
                plan, t, snapshots[t].broadcast, other_memory, other, traced.outputs
            )
        except TranscriptEnded:  # that is a fault of its own
            return MemoryHistory(plan, snapshots)
        transcripts[t], memory, other_memory = traced.outputs, traced.memory, again.memory
        is_same = is_same and digest_tensors(memory) == digest_tensors(other_memory)
    return MemoryHistory(plan, snapshots, {} if is_same else transcripts)

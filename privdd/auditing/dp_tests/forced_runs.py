"""One round of the audited client, run again on other data while its releases return given
outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from privdd.auditing.dp_tests.contributions import EnoughReleases, SeenContributions
from privdd.auditing.dp_tests.instrumentation import recording_context
from privdd.auditing.dp_tests.memory_history import MemoryHistory
from privdd.core.rng import Keys
from privdd.core.types import Shard, State, Tensors, Upload
from privdd.federated.channel import TranscriptEnded
from privdd.federated.simulation import Plan, Snapshot

COUNT_DEPENDS = "how many releases there are depends on the records"


@dataclass
class ForcedRun:
    """A round that was run.

    Attributes:
        seen: what records contributed.
        outputs: what its releases returned.
        upload: what it sends; None if it was not run to its end.
        problem: what the number of releases says of the records, in words; "" for nothing.
        memory: what the client keeps.
    """

    seen: SeenContributions
    outputs: list[Tensors]
    upload: Upload | None = None
    problem: str = ""
    memory: State = field(default_factory=dict)


@dataclass(frozen=True)
class ExaminedRound:
    """One round of the audited client, played on other data.

    Attributes:
        plan: of the run.
        snapshot: the round as the audited client begins it.
        shard: the client's data.
        keys: of all draws.
        history: of what clients with other data remember; None: they remember what the client does.
    """

    plan: Plan
    snapshot: Snapshot
    shard: Shard
    keys: Keys
    history: MemoryHistory | None = None

    def snapshot_of(self, shard: Shard) -> Snapshot:
        """The round as a client with this data begins it."""
        if self.history is None:
            return self.snapshot
        return self.history.snapshot_before(self.snapshot.round, shard)

    def run_forced(
        self,
        shard: Shard,
        seen: SeenContributions,
        forced: list[Tensors] | None,
        snapshot: Snapshot | None = None,
        **recorder: Any,
    ) -> ForcedRun:
        """The round with every record sampled.

        Args:
            shard: the client's data.
            seen: to be filled.
            forced: what its releases return; None: what the mechanisms release.
            snapshot: the round as this client begins it; None: as the audited one does.
            recorder: further settings of ``ReleaseRecorder``.
        """
        run = ForcedRun(seen, [])
        start = snapshot or self.snapshot
        ctx = recording_context(
            self.plan, start.round, self.keys, run.seen, forced=forced, **recorder
        )
        ctx.outputs = run.outputs
        memory = dict(start.memory)
        try:
            run.upload, run.memory = self.plan.method.local(
                start.broadcast, memory, shard.client_data, ctx
            )
        except EnoughReleases:
            return run
        except TranscriptEnded:
            run.problem = COUNT_DEPENDS
        if forced is not None and len(run.outputs) < len(forced):
            run.problem = COUNT_DEPENDS
        return run

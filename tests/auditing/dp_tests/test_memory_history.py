"""Tests of ``privdd.auditing.dp_tests.memory_history``."""

from __future__ import annotations

from privdd.auditing.dp_tests.memory_history import MemoryHistory
from privdd.federated.simulation import Snapshot
from tests.auditing.dp_tests.subjects import client, fedavg, subject


def test_without_transcripts_memory_is_the_runs_own() -> None:
    snapshots = {0: Snapshot(0, {}, {}), 1: Snapshot(1, {}, {})}
    history = MemoryHistory(subject(fedavg(), {}).plan, snapshots)
    assert history.snapshot_before(1, client(0)) is snapshots[1]

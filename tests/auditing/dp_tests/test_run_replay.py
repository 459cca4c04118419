"""The state from which a round of a run is played again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from privdd.auditing.dp_tests.run_replay import WholeRunReplay
from privdd.federated.simulation import Snapshot


def replay_of(kept: dict[int, str]) -> WholeRunReplay:
    """kept: round -> phase of the snapshots; rounds from 4 on are of the phase "late"."""
    hooks = SimpleNamespace(phase=lambda t: "late" if t >= 4 else "early")
    plan = SimpleNamespace(method=SimpleNamespace(audit_hooks=hooks))
    snapshots = {t: Snapshot(t, {}, {}, phase=phase) for t, phase in kept.items()}
    subject: Any = SimpleNamespace(plan=plan, snapshots=snapshots)
    return WholeRunReplay(subject, hosts=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "round, expected",
    [
        (0, 1),  # none before it: the first of its phase
        (1, 1),
        (2, 1),
        (3, 3),
        (4, 5),
        (6, 5),
    ],
)
def test_a_round_begins_from_the_nearest_kept_state_of_its_phase(round: int, expected: int) -> None:
    replay = replay_of({1: "early", 3: "early", 5: "late"})
    assert replay.snapshot_before(round).round == expected


def test_a_phase_without_a_kept_state_begins_from_another() -> None:
    replay = replay_of({1: "early", 3: "early"})
    assert replay.snapshot_before(5).round == 3

"""A price says CPU seconds by stage and the time on an engine's workers."""

from __future__ import annotations

import sys

import pytest

from privdd.auditing.cost_estimate import (
    FORK_SECONDS,
    FORKSERVER_SECONDS,
    WORKER_SECONDS,
    WORKER_START,
    CostEstimate,
    worker_start_seconds,
)
from privdd.runtime.engine import Engine


def test_wall_is_shared_by_workers_but_for_the_longest_attack() -> None:
    stages = {"start": 4.0, "train": 6.0, "worlds": 10.0, "attacks": 20.0}
    assert CostEstimate(stages, 5.0, 1, 0, 0).wall_seconds == pytest.approx(40)
    assert CostEstimate(stages, 5.0, 4, 0, 0).wall_seconds == pytest.approx(4 + 36 / 4)
    assert CostEstimate(stages, 18.0, 4, 0, 0).wall_seconds == pytest.approx(4 + 36 / 4 + 18 - 20 / 4)
    assert CostEstimate(stages, 18.0, 2, 2 * 10**9, 10**6).format_lines()[-1] == (
        "about 30 s on 2 workers, 40 CPU s; memory 2 GB, disk 1 MB"
    )


def test_workers_load_the_program_each_or_are_forked_from_one_that_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert worker_start_seconds(Engine(), "cpu") == {}
    forked = {WORKER_START: FORKSERVER_SECONDS + 3 * FORK_SECONDS}
    assert worker_start_seconds(Engine("processes", workers=3), "cpu") == forked
    assert CostEstimate({"start": 4.0, **forked}, 0.0, 3, 0, 0).wall_seconds == pytest.approx(4 + FORKSERVER_SECONDS / 3 + FORK_SECONDS)
    for kind, device in (("processes", "cuda"), ("ray", "cpu")):
        assert worker_start_seconds(Engine(kind, workers=3), device) == {WORKER_START: 3 * WORKER_SECONDS}
        assert CostEstimate({"start": 4.0, **worker_start_seconds(Engine(kind, workers=3), device)}, 0.0, 3, 0, 0).wall_seconds == pytest.approx(4 + WORKER_SECONDS)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert worker_start_seconds(Engine("processes", workers=3), "cpu") == {WORKER_START: 3 * WORKER_SECONDS}

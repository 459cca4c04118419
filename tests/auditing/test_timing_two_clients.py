"""Two clients are timed, and stand for all."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from privdd.auditing import timing
from privdd.auditing.timing import RoundTooLong, TwoClientEngine, thin_records, usual_task
from privdd.core.loop_timing import timed_steps, truncate_loops
from privdd.core.types import Received, Records, Shard
from privdd.federated.simulation import ClientTask

Answer = tuple[Received, list[Any], dict[str, Any]]


def records(n: int) -> Records:
    return Records(torch.zeros(n, 1, 2, 2), torch.arange(n) % 3, torch.arange(n))


def tasks(*sizes: int) -> list[ClientTask]:
    shards = [Shard(k, records(n), records(2), records(2), 3) for k, n in enumerate(sizes)]
    plan: Any = None
    return [ClientTask(plan, 0, k, {}, {}, shard) for k, shard in enumerate(shards)]


def burn(seconds: float) -> None:
    began = time.process_time()
    while time.process_time() - began < seconds:
        sum(range(200))


def answer(task: ClientTask) -> Answer:
    return Received(task.client, task.round, {"n": {"n": torch.tensor(len(task.shard.train))}}), [], {}


def test_the_usual_client_stands_for_all_but_the_audited_one() -> None:
    ran: list[int] = []

    def fn(task: ClientTask) -> Answer:
        ran.append(task.client)
        return answer(task)

    with truncate_loops(1.0) as part:
        engine = TwoClientEngine(part=part, victim=3)
        found = list(engine.map(fn, tasks(10, 22, 30, 50, 11)))
    assert ran == [1, 3] and [received.client for received, _, _ in found] == [0, 1, 2, 3, 4]
    assert [int(received.values["n"]["n"]) for received, _, _ in found] == [22, 22, 22, 50, 22]
    assert engine.usual_seconds() == engine.took[1] and set(engine.took) == {1, 3}


def test_a_stopped_client_is_scaled_from_fewer_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MAX_ROUND_SECONDS", 0.3)
    with truncate_loops(1.0) as part:
        engine = TwoClientEngine(part=part)

        def fn(task: ClientTask) -> Answer:  # a user's own function: a millisecond a record, and too many of them
            n = len(task.shard.train)
            burn(0.001 * n if n < 1600 else 30.0)
            return answer(task)

        list(engine.map(fn, tasks(1600, 1600)))
    assert engine.share == [16] and 1.4 < engine.took[0] < 3.2


@pytest.mark.parametrize(("by_records", "expected"), [(True, 16.0), (False, 1.0)], ids=["epochs", "steps"])
def test_counted_loops_are_scaled_by_records_only_where_these_count(
    monkeypatch: pytest.MonkeyPatch, by_records: bool, expected: float
) -> None:
    monkeypatch.setattr(timing, "MAX_ROUND_SECONDS", 0.3)
    with truncate_loops(0.05) as part:
        engine = TwoClientEngine(part=part)

        def fn(task: ClientTask) -> Answer:  # reads all of its records for longer than it may, then steps of ten milliseconds
            n = len(task.shard.train)
            burn(30.0 if n > 1000 else 0.0)
            for _ in timed_steps(range(n if by_records else 100)):
                burn(0.01)
            return answer(task)

        list(engine.map(fn, tasks(1600, 1600)))
    assert engine.share == [16] and engine.took[0] == pytest.approx(expected, rel=0.4)


def test_one_that_never_ends_is_said_to_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MAX_ROUND_SECONDS", 0.05)
    with truncate_loops(1.0) as part, pytest.raises(RoundTooLong):
        list(TwoClientEngine(part=part).map(lambda task: burn(60.0), tasks(300, 300)))


def test_sizes() -> None:
    assert usual_task(tasks(1, 5, 30)).client == 1 and len(thin_records(records(33), 16)) == 3

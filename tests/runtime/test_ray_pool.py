"""A Ray cluster at its edges, with a fake of Ray: lost messages, silence, unlike workers, what is
sent and how often."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from privdd.core.validation import BadConfig
from privdd.runtime import compute_environment, ray_pool, task_messages
from privdd.runtime.engine import Engine, describe_engine, describe_mixed_workers
from privdd.runtime.ray_pool import NoAnswer, RayCluster, UnlikeWorker
from privdd.runtime.task_messages import find_shared_parts
from privdd.runtime.worker_pool import TooManyLostWorkers, map_in_chunks
from tests.runtime.fake_ray import ERRORS, LOST, FakeRay, RayTaskError


@dataclass(frozen=True)
class Part:
    numbers: torch.Tensor


@dataclass(frozen=True)
class Sum:
    """Adds a number to the sum of the shared numbers."""

    part: Part
    number: int


def add(task: Sum) -> float:
    return float(task.part.numbers.sum()) + task.number


LARGE = Part(torch.ones(50_000))
TASKS = [Sum(LARGE, k) for k in range(12)]
EXPECTED = [50_000.0 + k for k in range(12)]


@dataclass
class Clock:
    """Every look takes ten seconds; pauses are noted, not slept."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        self.now += 10
        return self.now


@pytest.fixture(autouse=True)
def no_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_pool, "_worker_environments", {})
    monkeypatch.setattr(task_messages._KeptParts, "digest", "")


def results(ray: FakeRay, clock: Clock | None = None, retries: int = 2, **more: Any) -> list[Any]:
    clock = clock or Clock()
    shared = find_shared_parts(TASKS)
    cluster = RayCluster(ray, 0, shared=shared, clock=clock, sleep=clock.pauses.append, **more)
    return list(map_in_chunks(cluster, add, TASKS, retries=retries))


def test_what_tasks_share_is_sent_once() -> None:
    ray = FakeRay()
    assert results(ray) == EXPECTED
    assert ray.puts == 1 and sum(len(message) > 100_000 for message in ray.sent) == 1
    assert max(len(message) for message in ray.sent[1:]) < 1000


@pytest.mark.parametrize("call", ["put", "send", "wait", "get"])
@pytest.mark.parametrize("name", LOST)
def test_whatever_ray_reports_is_lost_work_and_tried_again(call: str, name: str) -> None:
    clock = Clock()
    ray = FakeRay(failures={call: [ERRORS[name]("no luck")]})
    assert results(ray, clock) == EXPECTED
    assert len(clock.pauses) == (call != "wait"), (
        "sent again at once, before a full store could recover"
    )


def test_an_error_of_ray_inside_a_task_is_lost_work_too() -> None:
    lost = RayTaskError(ERRORS["ObjectStoreFullError"]("full"))
    assert results(FakeRay(failures={"get": [lost]})) == EXPECTED


def test_a_store_that_stays_full_ends_in_one_line_that_names_it() -> None:
    clock = Clock()
    full = [ERRORS["ObjectStoreFullError"]("The object store is full") for _ in range(3)]
    with pytest.raises(
        TooManyLostWorkers, match="ObjectStoreFullError: The object store is full"
    ) as caught:
        results(FakeRay(failures={"put": full}), clock)
    assert "\n" not in str(caught.value)
    assert clock.pauses == sorted(clock.pauses) and clock.pauses[0] < clock.pauses[-1]


def test_a_workers_own_failure_before_the_task_is_not_tried_again() -> None:
    ray = FakeRay(
        failures={"get": [RayTaskError(ModuleNotFoundError("No module named 'mine'"))] * 9}
    )
    with pytest.raises(
        BadConfig, match=r"^engine=ray: a worker could not read its task; .*No module named 'mine'"
    ):
        results(ray)
    assert len(ray.failures["get"]) == 8


def test_silence_is_said_and_ends_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(NoAnswer, match=r"no answer for 600 s.*2 of 2 CPUs.*engine\.timeout"),
    ):
        results(FakeRay(silent=10**6), timeout=600)
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(";")[0] for text in said] == [
        f"engine=ray: no answer for {s} s" for s in (60, 120, 240, 480)
    ]
    assert results(FakeRay(silent=5), timeout=600) == EXPECTED


OTHER = replace(compute_environment.current_environment(), processor="x86_64 OTHER", kernels="0")


def test_an_unlike_worker_computes_nothing_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    # the messages are answered where ``remote_answer`` finds another environment than the driver's
    monkeypatch.setattr(
        ray_pool, "run_call", lambda *given: pytest.fail("an unlike worker computed")
    )
    own = compute_environment.current_environment()
    turns = iter([own, OTHER, own, own])
    monkeypatch.setattr(ray_pool, "current_environment", lambda: next(turns))
    ray.processors = 1
    cluster = RayCluster(ray, 0, shared=find_shared_parts(TASKS))
    handle = cluster.send(cluster.encode(add, TASKS[:1], 1))
    with pytest.raises(
        UnlikeWorker,
        match=r"^engine=ray: a worker on .* processor x86_64 OTHER \(here x86_64 "
        r".*engine\.mixed=true",
    ) as caught:
        cluster.receive(handle)
    assert "\n" not in str(caught.value)


def test_mixed_workers_compute_and_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    own = compute_environment.current_environment()
    assert results(ray, mixed=True) == EXPECTED
    engine = Engine("ray", workers=2, mixed=True)
    assert describe_mixed_workers(engine) == ""
    monkeypatch.setattr(ray_pool, "current_environment", lambda: OTHER)
    assert results(FakeRay(), mixed=True) == EXPECTED
    assert describe_engine(engine)["environments"] == [own.to_json(), OTHER.to_json()]
    assert "x86_64 OTHER" in describe_mixed_workers(engine) and "\n" not in describe_mixed_workers(
        engine
    )


def test_workers_are_those_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the cores of the driver."""
    monkeypatch.setattr(ray_pool, "connect_ray", lambda address, workers: FakeRay(processors=7))
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert Engine("ray", address="head:1").size == 7
    assert Engine("ray", address="head:1", workers=3).size == 3
    assert Engine("ray", address="head:1", workers=9).size == 7
    assert Engine("ray").size == 1


def test_a_listener_that_is_no_head_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # as Ray itself, without a limit
    waits = "import signal, sys, time; signal.alarm(int(sys.argv[2])); time.sleep(600)"
    monkeypatch.setattr(ray_pool, "ASK_HEAD", waits)
    monkeypatch.setattr(ray_pool, "PROBE_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(
            OSError, match=r"does not answer as the head of a Ray cluster.*ray start"
        ) as caught:
            ray_pool._check_reachable(address)
    assert "\n" not in str(caught.value)
    with pytest.raises(OSError, match=r"nothing listens there.*ray start"):
        ray_pool._check_reachable(address)

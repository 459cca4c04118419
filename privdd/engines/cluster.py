"""Tasks on a Ray cluster: one of this machine, or an existing one; lost workers are tried again."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from privdd.engine import Engine, LostWorkers, pinned

IN_FLIGHT = 2  # tasks per worker that are under way or queued: workers never wait, memory stays bounded


def ray_map(engine: Engine, fn: Callable[[Any], Any], work: Sequence[Any]) -> Iterator[Any]:
    """Results in order; a task whose worker or node died runs again, up to ``engine.retries`` times.

    A task's own exception is raised as it is. Raises ValueError where ray is not installed or the
    cluster cannot be reached, LostWorkers where a task lost its worker too often.
    """
    ray = connect(engine)
    # One processor a task and no retries of Ray's own: every loss is counted in one place, below.
    submit = ray.remote(num_cpus=1, max_retries=0)(pinned).remote
    window = IN_FLIGHT * (engine.workers or int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[tuple[int, Any]] = deque()
    for at, item in enumerate(work):
        waiting.append((at, submit(fn, item, engine.threads)))
        if len(waiting) >= window:
            yield _result(ray, engine, submit, fn, work, *waiting.popleft())
    while waiting:
        yield _result(ray, engine, submit, fn, work, *waiting.popleft())


def _result(
    ray: Any, engine: Engine, submit: Callable[..., Any], fn: Any, work: Sequence[Any], at: int, handle: Any
) -> Any:
    gone = ray.exceptions
    for _ in range(engine.retries + 1):
        try:
            return ray.get(handle)
        except gone.RayTaskError as error:
            raise error.cause from None  # what the task raised, as every other engine raises it
        except (gone.WorkerCrashedError, gone.NodeDiedError, gone.ObjectLostError, gone.OutOfMemoryError):
            handle = submit(fn, work[at], engine.threads)
    raise LostWorkers(engine.retries + 1)


def connect(engine: Engine) -> Any:
    """The ray module, connected once per process: later calls use the same cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ValueError("engine=ray: ray is not installed; install it with: pip install 'privdd[ray]'") from None
    if ray.is_initialized():
        return ray
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if engine.address:
            _knock(engine.address)
            ray.init(address=engine.address, **quiet)
        else:
            # workers import what this process can import; without address="local" Ray would attach to
            # whatever cluster was last started on this machine
            place = {"env_vars": {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}}
            ray.init(address="local", num_cpus=engine.size, runtime_env=place, include_dashboard=False, **quiet)
    except Exception as error:  # Ray raises built-in errors, its own and gRPC's
        raise ValueError(f"engine.address={engine.address}: {' '.join(str(error).split())[:200]}") from None
    return ray


def _knock(address: str) -> None:
    """Raises OSError where nothing listens: Ray itself would retry for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def disconnect() -> None:
    """Leave the cluster; a cluster that ``connect`` started ends with it."""
    import ray

    ray.shutdown()

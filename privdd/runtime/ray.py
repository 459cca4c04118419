"""Tasks on a Ray cluster: one started on this machine, or an existing one."""

from __future__ import annotations

import functools
import logging
import os
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privdd.runtime.workers import LostWorker, answer_call, map_in_chunks


def ray_map(
    fn: Callable[[Any], Any], work: Sequence[Any], *, workers: int, threads: int, retries: int, address: str | None
) -> Iterator[Any]:
    """Results in order (see ``map_in_chunks``).

    Raises ValueError where ray is not installed or the cluster cannot be reached.
    """
    return map_in_chunks(RayCluster(connect_ray(address, workers), workers), fn, work, threads=threads, retries=retries)


def remote_answer(payload: np.ndarray) -> np.ndarray:
    """``answer_call`` on arrays of bytes, which Ray keeps in shared memory and does not copy."""
    return np.frombuffer(answer_call(payload), np.uint8)


@functools.cache
def _remote_task(ray: Any) -> Any:
    # One CPU per message and no retries by Ray itself: lost workers are counted in one place.
    return ray.remote(num_cpus=1, max_retries=0)(remote_answer)


class RayCluster:
    """A connected Ray cluster; workers: how many of its CPUs are used, 0 = all."""

    def __init__(self, ray: Any, workers: int) -> None:
        processors = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.ray, self.workers = ray, min(workers or processors, processors)
        # Ray starts every message that it has a free CPU for. So a second message per worker is sent ahead only if all
        # CPUs are used: elsewhere it would run on a CPU that the user did not grant.
        self.in_flight = 2 * self.workers if self.workers == processors else self.workers
        gone = ray.exceptions
        self.losses = (gone.WorkerCrashedError, gone.NodeDiedError, gone.ObjectLostError, gone.OutOfMemoryError)

    def send(self, payload: bytes) -> Any:
        return _remote_task(self.ray).remote(np.frombuffer(payload, np.uint8))

    def wait(self, handles: Collection[Any]) -> Any:
        return self.ray.wait(list(handles), num_returns=1)[0][0]

    def receive(self, handle: Any) -> Any:
        try:
            return self.ray.get(handle)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None  # what failed before the task, such as an import
        except self.losses:
            raise LostWorker from None

    def stop(self, handles: Collection[Any]) -> None:
        for handle in handles:
            self.ray.cancel(handle, force=True)


_started_clusters: dict[str, int] = {}  # address of a cluster that ``connect_ray`` started -> its processors


def connect_ray(address: str | None, workers: int) -> Any:
    """The ray module, connected once per process: later calls use the same cluster.

    One that was started here for fewer workers than are asked for now makes way for a larger one.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray

        from privdd.runtime import ray_cleanup
    except ImportError:
        raise ValueError("engine=ray: ray is not installed; install it with: pip install 'privdd[ray]'") from None
    wanted = workers or os.cpu_count() or 1
    if ray.is_initialized():
        if address or not _started_clusters or _started_clusters.get(_cluster_address(ray), wanted) >= wanted:
            return ray
        disconnect_ray()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            _check_reachable(address)
            ray.init(address=address, **quiet)
        else:
            # workers import what this process can import; without address="local" Ray would attach to
            # whatever cluster was last started on this machine
            ray_cleanup.start_watcher(str(Path(ray.__file__).parent))
            place = {"env_vars": {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}}
            ray.init(
                address="local",
                num_cpus=wanted,
                runtime_env=place,
                include_dashboard=False,
                **quiet,
            )
            _started_clusters[_cluster_address(ray)] = wanted
    except Exception as error:  # Ray raises built-in errors, its own and gRPC's
        raise ValueError(f"engine.address={address}: {' '.join(str(error).split())[:200]}") from None
    return ray


def _cluster_address(ray: Any) -> str:
    """The address of the cluster that this process is connected to: not always by ``connect_ray``."""
    return str(ray.get_runtime_context().gcs_address)


def _check_reachable(address: str) -> None:
    """Raises OSError if nothing listens at the address: Ray itself would retry for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def disconnect_ray() -> None:
    """Leave the cluster; a cluster that ``connect_ray`` started ends with it."""
    import ray

    ray.shutdown()
    _started_clusters.clear()

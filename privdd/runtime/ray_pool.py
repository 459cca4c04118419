"""Workers of a Ray cluster, started on this machine or an existing one.

What the tasks of a call share is put into the cluster's object store once; a message holds the
rest. Each message says what its driver computes with: a worker that computes with anything else
does nothing and says so. Whatever error Ray itself reports means that a message was lost, and it is
sent again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privdd.core.validation import BadConfig
from privdd.runtime.compute_environment import ComputeEnvironment, current_environment
from privdd.runtime.startup import usable_cores
from privdd.runtime.task_messages import (
    SharedParts,
    decode_call,
    digest_bytes,
    encode_value,
    find_shared_parts,
    read_parts,
    run_call,
)
from privdd.runtime.worker_pool import NO_PARTS, LostWorker, map_in_chunks

LOG = logging.getLogger("privdd")
LOOK_SECONDS = 5.0  # seconds between looks at whether an answer is overdue
# seconds without an answer until the first line about it; then each time twice as long
FIRST_NOTICE_SECONDS = 60.0
# seconds before a lost message is sent again, twice as long after each further loss in a row
PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 16.0
CONNECT_SECONDS = 5.0  # seconds for a listener to accept a connection
PROBE_SECONDS = 12  # seconds for a listener to answer as the head of a Ray cluster
PROBE_START_SECONDS = 120  # seconds for the process that asks to start
ERROR_LENGTH = 200  # characters of a foreign error that are shown
HEADER_END = b"\n"
HOW_TO_START = (
    "on its machine, ray start --head --port=PORT starts one, and ray start "
    "--address=HOST:PORT joins it"
)
# Ray waits for a head without a limit, and cannot be interrupted in it: so another process asks,
# which its alarm ends.
ASK_HEAD = """
import signal, sys
from ray._raylet import GcsClient
signal.alarm(int(sys.argv[2]))
GcsClient(address=sys.argv[1])
print("answers", flush=True)
"""


# In a worker


def remote_answer(header: str, shared: np.ndarray, payload: np.ndarray) -> np.ndarray:
    """In a worker: the answer to a message. Arrays of bytes are kept by Ray in shared memory and
    not copied.

    header: JSON {"environment" of the driver, "mixed", "parts": digest of the shared parts}. The
        answer is a line of JSON, {"environment" of the worker, "refused"}, and unless it is refused
        what ``run_call`` gives.
    """
    request = json.loads(header)
    environment = current_environment()
    refused = not request["mixed"] and environment.to_json() != request["environment"]
    head = json.dumps(
        {"environment": environment.to_json(), "refused": refused, "host": socket.gethostname()}
    ).encode()
    if refused:
        return np.frombuffer(head + HEADER_END, np.uint8)
    fn, items, threads = decode_call(payload, read_parts(shared, request["parts"]))
    answer = encode_value(run_call(fn, items, threads), locks_secrets=True)
    return np.frombuffer(head + HEADER_END + answer, np.uint8)


# In the driver


class NoAnswer(RuntimeError):
    """No worker answered before the deadline."""


class UnlikeWorker(BadConfig):
    """A worker would compute other bits than the driver."""


@functools.cache
def _remote_task(ray: Any) -> Any:
    # One CPU per message and no retries by Ray itself: lost workers are counted in one place.
    return ray.remote(num_cpus=1, max_retries=0)(remote_answer)


def count_processors(ray: Any) -> int:
    """CPUs of the connected cluster, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


class RayCluster:
    """A connected Ray cluster. workers: how many of its CPUs are used, 0 = all; timeout: seconds
    without any answer after which ``wait`` gives up; environments: those of the workers that
    answered."""

    def __init__(
        self,
        ray: Any,
        workers: int,
        *,
        shared: SharedParts = NO_PARTS,
        mixed: bool = False,
        timeout: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        processors = count_processors(ray)
        self.ray = ray
        self.workers = min(workers or processors, processors)
        # Ray starts every message that it has a free CPU for. So a second message per worker is
        # sent ahead only if all CPUs are used: elsewhere it would run on a CPU that the user did
        # not grant.
        if self.workers == processors:
            self.in_flight = 2 * self.workers
        else:
            self.in_flight = self.workers
        self.shared = shared
        self.mixed = mixed
        self.timeout = timeout
        self.clock = clock
        self.sleep = sleep
        self.losses_in_a_row = 0
        # the shared parts in the object store, and their digest
        self._stored: tuple[Any, str] | None = None

    def encode(self, fn: Callable[[Any], Any], items: Sequence[Any], threads: int) -> bytes:
        return self.shared.encode_call(fn, items, threads, locks_secrets=True)

    def send(self, payload: bytes) -> Any:
        with self._lost_if_ray_fails():
            reference, digest = self._store_parts()
            request = {
                "environment": current_environment().to_json(),
                "mixed": self.mixed,
                "parts": digest,
            }
            return _remote_task(self.ray).remote(
                json.dumps(request), reference, np.frombuffer(payload, np.uint8)
            )

    def _store_parts(self) -> tuple[Any, str]:
        """The shared parts, put into the object store unless they are there already."""
        if self._stored is None:
            content = self.shared.encode_parts(locks_secrets=True)
            self._stored = (self.ray.put(np.frombuffer(content, np.uint8)), digest_bytes(content))
        return self._stored

    def wait(self, handles: Collection[Any]) -> Any:
        """One whose message was answered or lost. Says so where none comes for long, and raises
        NoAnswer at the deadline."""
        began = self.clock()
        notice = FIRST_NOTICE_SECONDS
        while True:
            try:
                ready = self.ray.wait(list(handles), num_returns=1, timeout=LOOK_SECONDS)[0]
            except self.ray.exceptions.RayError:  # which of them is lost, ``receive`` finds out
                return next(iter(handles))
            if ready:
                return ready[0]
            waited = self.clock() - began
            if waited >= self.timeout:
                raise NoAnswer(
                    f"{self._describe_wait(handles, waited)}; engine.timeout allows no "
                    "more; finished work is kept"
                )
            if waited >= notice:
                LOG.warning("%s", self._describe_wait(handles, waited))
                notice *= 2

    def _describe_wait(self, handles: Collection[Any], waited: float) -> str:
        free = int(self.ray.available_resources().get("CPU", 0))
        return (
            f"engine=ray: no answer for {waited:.0f} s; {len(handles)} messages are out, "
            f"{free} of {count_processors(self.ray)} CPUs of the cluster are free"
        )

    def receive(self, handle: Any) -> Any:
        with self._lost_if_ray_fails():
            answer = memoryview(
                self.ray.get(handle, timeout=self.timeout if self.timeout < float("inf") else None)
            )
            self.losses_in_a_row = 0
            end = bytes(answer).index(HEADER_END)
            self._check_environment(json.loads(bytes(answer[:end])))
            return answer[end + 1 :]

    @contextlib.contextmanager
    def _lost_if_ray_fails(self) -> Iterator[None]:
        """Whatever Ray reports but the task's own error means that a message was lost."""
        failures = self.ray.exceptions
        try:
            yield
        except failures.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, Exception) and not isinstance(cause, failures.RayError):
                raise _explain_unread_message(cause) from None
            self._pause_after_loss(error)
        except failures.RayError as error:
            self._pause_after_loss(error)

    def _pause_after_loss(self, error: Exception) -> None:
        """Raises LostWorker, after a pause in which a full store or a dead node can recover."""
        self._stored = None  # it may be lost with its node
        self.sleep(min(PAUSE_SECONDS * 2**self.losses_in_a_row, MAX_PAUSE_SECONDS))
        self.losses_in_a_row += 1
        raise LostWorker(f"{type(error).__name__}: {shorten_error(error)}") from None

    def _check_environment(self, head: dict[str, Any]) -> None:
        """Note the worker's environment. Raises UnlikeWorker where it refused to compute."""
        environment = ComputeEnvironment.from_json(head["environment"])
        if head["refused"]:
            difference = environment.describe_difference(current_environment())
            raise UnlikeWorker(
                f"engine=ray: a worker on {head['host']} would compute other bits: "
                f"{difference}; make its node like this "
                "one, or set engine.mixed=true, which the manifest and the page record"
            )
        _worker_environments.setdefault(environment, None)

    def stop(self, handles: Collection[Any]) -> None:
        for handle in handles:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.cancel(handle, force=True)


def _explain_unread_message(cause: Exception) -> BadConfig:
    """A task's own error is part of an answer, so this one came before the task: an import, or a
    secret that is not there."""
    if isinstance(cause, BadConfig):
        return cause
    reason = f"{type(cause).__name__}: {shorten_error(cause)}"
    return BadConfig(
        "engine=ray: a worker could not read its task; privdd and your own modules are "
        f"needed on every node ({reason})"
    )


def shorten_error(error: BaseException) -> str:
    """The error's text in one line."""
    return " ".join(str(error).split())[:ERROR_LENGTH]


def ray_map(
    fn: Callable[[Any], Any],
    work: Sequence[Any],
    *,
    address: str | None,
    workers: int,
    threads: int,
    retries: int,
    mixed: bool,
    timeout: float,
) -> Iterator[Any]:
    """Results in order (see ``map_in_chunks``). What the tasks share travels once. Raises NoAnswer,
    UnlikeWorker too."""
    ray = connect_ray(address, workers)
    cluster = RayCluster(ray, workers, shared=find_shared_parts(work), mixed=mixed, timeout=timeout)
    return map_in_chunks(cluster, fn, work, threads=threads, retries=retries)


_worker_environments: dict[
    ComputeEnvironment, None
] = {}  # of the connected cluster's workers, as they came
_started_clusters: dict[
    str, int
] = {}  # address of a cluster that ``connect_ray`` started -> its processors


def worker_environments() -> list[ComputeEnvironment]:
    """Those of the workers that have answered since this process connected to a cluster, in the
    order of their answers."""
    return list(_worker_environments)


def count_ray_workers(address: str | None, workers: int) -> int:
    """How many workers a call has. A cluster at an address is asked, and connected for that; one of
    this machine, which is started later, has what is asked for."""
    if address is None:
        return workers or usable_cores()
    processors = count_processors(connect_ray(address, workers))
    return min(workers or processors, processors)


def connect_ray(address: str | None, workers: int) -> Any:
    """The ray module, connected once per process: later calls use the same cluster.

    One that was started here for fewer workers than are asked for now makes way for a larger one.
    Raises ValueError where ray is not installed or the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray

        from privdd.runtime import ray_cleanup
    except ImportError:
        raise ValueError(
            "engine=ray: ray is not installed; install it with: pip install ray psutil"
        ) from None
    wanted = workers or usable_cores()
    if ray.is_initialized():
        if (
            address
            or not _started_clusters
            or _started_clusters.get(_cluster_address(ray), wanted) >= wanted
        ):
            return ray
        disconnect_ray()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            _check_reachable(address)
            ray.init(address=address, **quiet)
        else:
            # workers import what this process can import; without address="local" Ray would attach
            # to whatever cluster was last started on this machine
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
        raise ValueError(f"engine.address={address}: {shorten_error(error)}") from None
    return ray


def _cluster_address(ray: Any) -> str:
    """The address of the cluster that this process is connected to: not always by
    ``connect_ray``."""
    return str(ray.get_runtime_context().gcs_address)


def _check_reachable(address: str) -> None:
    """Raises OSError unless the head of a Ray cluster answers there: Ray itself would retry for
    minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise OSError(
            f"nothing listens there ({error.strerror or error}); {HOW_TO_START}"
        ) from None
    if not address.startswith("ray://") and not _answers_as_head(f"{host}:{port}"):
        raise OSError(
            f"what listens there does not answer as the head of a Ray cluster; {HOW_TO_START}"
        )


def _answers_as_head(address: str) -> bool:
    """Whether a Ray head answers at HOST:PORT. A release of Ray that has no such client is taken to
    be right."""
    command = [sys.executable, "-c", ASK_HEAD, address, str(PROBE_SECONDS)]
    limit = PROBE_START_SECONDS + PROBE_SECONDS
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return False
    unknown = "ImportError" in answer.stderr or "TypeError" in answer.stderr
    return "answers" in answer.stdout or unknown


def disconnect_ray() -> None:
    """Leave the cluster; a cluster that ``connect_ray`` started ends with it."""
    import ray

    ray.shutdown()
    _started_clusters.clear()
    _worker_environments.clear()

"""Where independent tasks run: one interface to this process, to joblib's loky pool of this machine, which is kept alive
between calls, or to a Ray cluster, started on this machine or an existing one.

Every task carries its own random streams, so results do not depend on which worker ran it, or on how often it was
run again after a worker died.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from joblib.externals.loky import get_reusable_executor, process_executor, reusable_executor
from joblib.externals.loky.backend.reduction import dumps, loads
from joblib.externals.loky.process_executor import ShutdownExecutorError
from torch import Tensor

from privdd.core.group_settings import check_engine
from privdd.runtime.startup import SINGLE_THREADED, keep_freed_memory, usable_cores, wait_for_parent, worker_context


class TooManyLostWorkers(RuntimeError):
    """A task's worker died every time it was tried."""

    def __init__(self, times: int) -> None:
        super().__init__(
            f"the worker of a task died {times} times in a row (out of memory?); use fewer engine.workers, "
            "or a smaller model or batch; finished work is kept"
        )


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set torch's thread count, and restore it on the way out."""
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != before:
            torch.set_num_threads(before)


# Torch's own pickling sends every tensor through a separate file or through ``torch.save``, which costs a small client
# more time than its training. Here a tensor is sent as its raw bytes with type and shape.

PROTOCOL = 5  # the pickle protocol that writes raw bytes unescaped
SMALL_TENSOR_BYTES = 2**14  # bytes


def encode_value(value: Any) -> bytes:
    """Any value as bytes; an object that occurs twice in it (a round's broadcast, its plan) is written once."""
    return bytes(dumps(value, reducers={Tensor: _reduce_tensor}, protocol=PROTOCOL))


def decode_value(payload: Any) -> Any:
    """The value of ``encode_value``; only for what this program's own processes wrote."""
    return loads(payload)


def _reduce_tensor(tensor: Tensor) -> Any:
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad
    if not plain or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return tensor.__reduce_ex__(PROTOCOL)  # anything unusual is left to torch
    data = tensor.reshape(-1).view(torch.uint8).numpy()
    # an array is written without a copy, but costs more to describe than a few bytes to copy
    raw = bytearray(data) if data.size < SMALL_TENSOR_BYTES else data
    return _restore_tensor, (raw, tensor.dtype, tuple(tensor.shape))


def _restore_tensor(data: np.ndarray | bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not len(data):
        return torch.empty(shape, dtype=dtype)
    # Clone into memory from torch's allocator: kernels may round differently on unaligned memory.
    return torch.frombuffer(data, dtype=dtype).clone().reshape(shape)


def encode_call(fn: Callable[[Any], Any], items: Sequence[Any], count: int) -> bytes:
    """The message to a worker: the function, some items in order, and the number of torch threads for each."""
    return encode_value((fn, items, count))


def _picklable_error(error: Exception) -> Exception:
    """The error itself if it can be pickled, else a RuntimeError with its text."""
    try:
        decode_value(encode_value(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def answer_call(payload: Any) -> bytes:
    """In a worker: (results up to the first error, (error, its traceback) or None, seconds), packed."""
    keep_freed_memory()
    fn, items, count = decode_value(payload)
    results, error, began = [], None, time.perf_counter()
    with torch_threads(count):
        for item in items:
            try:
                results.append(fn(item))
            except Exception as caught:
                error = _picklable_error(caught), traceback.format_exc()
                break
    return encode_value((results, error, time.perf_counter() - began))


# Many short tasks travel in one message, long ones alone, and those of a worker that died are sent again. A task's result
# depends on nothing but the task, so neither the grouping nor the worker that runs it changes any result.

SECONDS_PER_MESSAGE = 0.2  # seconds of work in one message: results come, and are kept, at least this often
MESSAGES_PER_WORKER = 3  # of the remaining work, so that all workers end at about the same time


class LostWorker(RuntimeError):
    """The worker that held a message has died."""


class WorkerTraceback(RuntimeError):
    """Carries the traceback of a task's exception as text: tracebacks cannot be sent between processes."""


class WorkerPool(Protocol):
    """Workers that answer messages. in_flight: how many messages to keep out, so that no worker waits."""

    workers: int
    in_flight: int

    def send(self, payload: bytes) -> Any: ...

    def wait(self, handles: Collection[Any]) -> Any:
        """One of the handles whose message was answered or lost."""

    def receive(self, handle: Any) -> Any:
        """The answer. Raises LostWorker."""

    def stop(self, handles: Collection[Any]) -> None:
        """Cancel these messages: their answers are no longer wanted."""


def chunk_size(left: int, workers: int, seconds: float | None) -> int:
    """Tasks in the next message, when one took ``seconds`` (None: not known yet); at least one."""
    if seconds is None:
        return 1
    return max(1, min(math.ceil(left / (MESSAGES_PER_WORKER * workers)), int(SECONDS_PER_MESSAGE / max(seconds, 1e-6))))


@dataclass(frozen=True)
class Chunk:
    """Tasks first, ..., last - 1; tries: how often their worker was lost."""

    first: int
    last: int
    tries: int = 0


def map_in_chunks(
    pool: WorkerPool, fn: Callable[[Any], Any], work: Sequence[Any], *, threads: int = 1, retries: int = 2
) -> Iterator[Any]:
    """fn over work, results in order as they become available.

    A task's own exception is raised as it is, after the results before it. Raises TooManyLostWorkers where
    the worker of the same tasks was lost ``retries`` + 1 times.
    """
    flying: dict[Any, Chunk] = {}
    answers: dict[int, tuple[Chunk, Any]] = {}  # by first task, until their turn comes
    sent, due, pace = 0, 0, None

    def send_chunk(chunk: Chunk) -> None:
        flying[pool.send(encode_call(fn, work[chunk.first : chunk.last], threads))] = chunk

    try:
        while due < len(work):
            while sent < len(work) and len(flying) < pool.in_flight:
                last = sent + chunk_size(len(work) - sent, pool.workers, pace)
                send_chunk(Chunk(sent, last))
                sent = last
            handle = pool.wait(flying.keys())
            chunk = flying.pop(handle)
            try:
                answers[chunk.first] = chunk, decode_value(pool.receive(handle))
            except LostWorker:
                if chunk.tries >= retries:
                    raise TooManyLostWorkers(chunk.tries + 1) from None
                send_chunk(Chunk(chunk.first, chunk.last, chunk.tries + 1))
                continue
            pace = answers[chunk.first][1][2] / (chunk.last - chunk.first)
            while due in answers:
                chunk, (results, error, _) = answers.pop(due)
                yield from results
                if error is not None:
                    raise error[0] from WorkerTraceback(error[1])
                due = chunk.last
    finally:
        pool.stop(flying.keys())


IDLE_SECONDS = 300  # seconds until an idle worker ends and gives its memory back
PARENT_CHECK_SECONDS = 1.0  # seconds between looks at whether the parent is still there


def prepare_worker(parent: int) -> None:
    """In a new worker: keep loky from taking kept memory (``privdd.runtime.startup``) for a leak; watch the parent.

    parent: its process number, by itself: a worker that starts as its parent dies would read another's.
    """
    process_executor._MAX_MEMORY_LEAK_SIZE = sys.maxsize
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """End this worker soon after its parent, who cannot tell it to once it was killed."""
    wait_for_parent()
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


def process_map(
    fn: Callable[[Any], Any], work: Sequence[Any], *, workers: int, threads: int, retries: int
) -> Iterator[Any]:
    """Results in order (see ``map_in_chunks``). The pool outlives the call: workers import torch once per run."""
    return map_in_chunks(ProcessPool(workers), fn, work, threads=threads, retries=retries)


@contextlib.contextmanager
def own_workers() -> Iterator[None]:
    """End worker processes that were started within: a caller's own joblib would take over their pool, and cannot use it."""
    before = reusable_executor._executor
    try:
        yield
    finally:
        if (pool := reusable_executor._executor) not in (None, before):
            pool.shutdown()


class ProcessPool:
    """A loky pool; a worker that dies breaks it, and the next message starts a new one."""

    def __init__(self, workers: int) -> None:
        self.workers, self.in_flight = workers, 2 * workers
        self.executor = self._start_executor()

    def _start_executor(self) -> Any:
        return get_reusable_executor(
            self.workers,
            context=worker_context(),
            timeout=IDLE_SECONDS,
            env=SINGLE_THREADED,
            initializer=prepare_worker,
            initargs=(os.getpid(),),
        )

    def send(self, payload: bytes) -> Future[bytes]:
        try:
            return self.executor.submit(answer_call, payload)
        except (BrokenProcessPool, ShutdownExecutorError):
            self.executor = self._start_executor()
            return self.executor.submit(answer_call, payload)

    def wait(self, handles: Collection[Future[bytes]]) -> Future[bytes]:
        return next(iter(wait(handles, return_when=FIRST_COMPLETED).done))

    def receive(self, handle: Future[bytes]) -> bytes:
        try:
            return handle.result()
        except (BrokenProcessPool, ShutdownExecutorError):
            raise LostWorker from None

    def stop(self, handles: Collection[Future[bytes]]) -> None:
        if not all([handle.cancel() for handle in handles]):  # a long task would hold up the end of the program
            self.executor.shutdown(kill_workers=True)


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

    One that was started here for fewer workers than are asked for now makes way for a larger one. Raises ValueError where
    ray is not installed or the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray

        from privdd.runtime import ray_cleanup
    except ImportError:
        raise ValueError("engine=ray: ray is not installed; install it with: pip install ray psutil") from None
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
            ray.init(address="local", num_cpus=wanted, runtime_env=place, include_dashboard=False, **quiet)
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


T = TypeVar("T")
R = TypeVar("R")
IN_THIS_PROCESS = ("auto", "serial")  # kinds of engine


@dataclass(frozen=True)
class Engine:
    """kind: auto | serial | processes | ray; workers: 0 = one per core; threads: torch threads per task.

    auto: serial, until ``privdd.auditing.cost_estimate.choose_engine`` has put another one in its place.
    Same seed and same ``threads`` give the same bits on every kind. retries: how often a task whose
    worker died is tried again.
    """

    clients_remember: ClassVar[bool] = False  # here client memories travel with the tasks; real clients keep their own

    kind: str = "serial"
    workers: int = 0
    threads: int = 1
    address: str | None = None
    retries: int = 2

    def __post_init__(self) -> None:
        check_engine(self)

    @property
    def size(self) -> int:
        return 1 if self.kind in IN_THIS_PROCESS else self.workers or usable_cores()

    def map(self, fn: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """fn over items, results in the order of the items as they become available."""
        work: Sequence[T] = list(items)
        if self.kind in IN_THIS_PROCESS or len(work) < 2:
            for item in work:
                with torch_threads(self.threads):
                    result = fn(item)
                yield result
        elif self.kind == "processes":
            yield from process_map(fn, work, workers=self.size, threads=self.threads, retries=self.retries)
        else:
            cluster = RayCluster(connect_ray(self.address, self.workers), self.workers)
            yield from map_in_chunks(cluster, fn, work, threads=self.threads, retries=self.retries)


def engine_in_words(engine: Engine) -> str:
    """ "one process", "2 processes" or "2 Ray workers"."""
    if engine.kind in IN_THIS_PROCESS:
        return "one process"
    one, many = ("Ray worker", "Ray workers") if engine.kind == "ray" else ("process", "processes")
    return f"{engine.size} {one if engine.size == 1 else many}"


def describe_engine(engine: Engine) -> dict[str, Any]:
    """For the manifest."""
    return {"kind": engine.kind, "workers": engine.size, "threads": engine.threads}

"""Worker processes of this machine: joblib's loky pool, which is kept alive between calls."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from joblib.externals.loky import get_reusable_executor, process_executor, reusable_executor
from joblib.externals.loky.process_executor import ShutdownExecutorError

from privdd.runtime.startup import SINGLE_THREADED, wait_for_parent, worker_context
from privdd.runtime.task_messages import (
    SharedParts,
    answer_call,
    digest_bytes,
    find_shared_parts,
)
from privdd.runtime.worker_pool import NO_PARTS, LostWorker, map_in_chunks

IDLE_SECONDS = 300  # seconds until an idle worker ends and gives its memory back
PARENT_CHECK_SECONDS = 1.0  # seconds between looks at whether the parent is still there


def prepare_worker(parent: int) -> None:
    """In a new worker: keep loky from taking kept memory (``privdd.runtime.startup``) for a leak;
    watch the parent.

    parent: its process number, by itself: a worker that starts as its parent dies would read
        another's."""
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
    """Results in order (see ``map_in_chunks``). The pool outlives the call: workers import torch
    once per run. What the tasks share is decoded once by each worker."""
    pool = ProcessPool(workers, find_shared_parts(work))
    return map_in_chunks(pool, fn, work, threads=threads, retries=retries)


@contextlib.contextmanager
def own_workers() -> Iterator[None]:
    """End worker processes that were started within: a caller's own joblib would take over their
    pool, and cannot use it."""
    before = reusable_executor._executor
    try:
        yield
    finally:
        if (pool := reusable_executor._executor) not in (None, before):
            pool.shutdown()


class ProcessPool:
    """A loky pool; a worker that dies breaks it, and the next message starts a new one."""

    def __init__(self, workers: int, shared: SharedParts = NO_PARTS) -> None:
        self.workers = workers
        self.shared = shared
        # a pipe within one machine costs less than to ask a worker what it holds
        self.parts = shared.encode_parts(locks_secrets=False)
        self.parts_digest = digest_bytes(self.parts)
        self.in_flight = 2 * workers
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

    def encode(self, fn: Callable[[Any], Any], items: Sequence[Any], threads: int) -> bytes:
        return self.shared.encode_call(fn, items, threads, locks_secrets=False)

    def send(self, payload: bytes) -> Future[bytes]:
        message = (payload, self.parts, self.parts_digest)
        try:
            return self.executor.submit(answer_call, *message)
        except (BrokenProcessPool, ShutdownExecutorError):
            self.executor = self._start_executor()
            return self.executor.submit(answer_call, *message)

    def wait(self, handles: Collection[Future[bytes]]) -> Future[bytes]:
        return next(iter(wait(handles, return_when=FIRST_COMPLETED).done))

    def receive(self, handle: Future[bytes]) -> bytes:
        try:
            return handle.result()
        except (BrokenProcessPool, ShutdownExecutorError):
            raise LostWorker from None

    def stop(self, handles: Collection[Future[bytes]]) -> None:
        if not all(
            [handle.cancel() for handle in handles]
        ):  # a long task would hold up the end of the program
            self.executor.shutdown(kill_workers=True)

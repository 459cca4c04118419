"""Worker processes of this machine, through joblib's loky; they are kept alive between calls."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from joblib.externals.loky import get_reusable_executor, process_executor
from joblib.externals.loky.process_executor import ShutdownExecutorError

from privdd.runtime.chunks import Lost, spread
from privdd.runtime.payload import answer
from privdd.runtime.preloaded import SINGLE, context, wait_for_parent

IDLE = 300  # seconds until an idle worker ends and gives its memory back
CHECK = 1.0  # seconds between looks at whether the parent is still there


def prepare(parent: int) -> None:
    """In a new worker: keep loky from taking kept memory (``privdd.runtime.allocator``) for a leak; watch the parent.

    parent: its process number, by itself: a worker that starts as its parent dies would read another's.
    """
    process_executor._MAX_MEMORY_LEAK_SIZE = sys.maxsize
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this worker soon after its parent, who cannot tell it to once it was killed."""
    wait_for_parent()
    while os.getppid() == parent:
        time.sleep(CHECK)
    os._exit(1)


def process_map(
    fn: Callable[[Any], Any], work: Sequence[Any], *, workers: int, threads: int, retries: int
) -> Iterator[Any]:
    """Results in order (see ``spread``). The pool outlives the call: workers import torch once per run."""
    return spread(Processes(workers), fn, work, threads=threads, retries=retries)


class Processes:
    """A loky pool; a worker that dies breaks it, and the next message starts a new one."""

    def __init__(self, workers: int) -> None:
        self.workers, self.in_flight = workers, 2 * workers
        self.executor = self._executor()

    def _executor(self) -> Any:
        return get_reusable_executor(
            self.workers,
            context=context(),
            timeout=IDLE,
            env=SINGLE,
            initializer=prepare,
            initargs=(os.getpid(),),
        )

    def send(self, payload: bytes) -> Future[bytes]:
        try:
            return self.executor.submit(answer, payload)
        except (BrokenProcessPool, ShutdownExecutorError):
            self.executor = self._executor()
            return self.executor.submit(answer, payload)

    def wait(self, handles: Collection[Future[bytes]]) -> Future[bytes]:
        return next(iter(wait(handles, return_when=FIRST_COMPLETED).done))

    def receive(self, handle: Future[bytes]) -> bytes:
        try:
            return handle.result()
        except (BrokenProcessPool, ShutdownExecutorError):
            raise Lost from None

    def stop(self, handles: Collection[Future[bytes]]) -> None:
        if not all([handle.cancel() for handle in handles]):  # a long task would hold up the end of the program
            self.executor.shutdown(kill_workers=True)

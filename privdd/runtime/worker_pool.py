"""Tasks over a pool of workers that answer messages: how many travel in one, in which order results
come, and which are sent again.

Many short tasks travel in one message, long ones alone, and those of a worker that died are sent
again. A task's result depends on nothing but the task, so neither the grouping nor the worker that
runs it changes any result."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from privdd.runtime.task_messages import SharedParts, decode_value

# seconds of work in one message: results come, and are kept, at least this often
SECONDS_PER_MESSAGE = 0.2
MESSAGES_PER_WORKER = 3  # of the remaining work, so that all workers end at about the same time
NO_PARTS = SharedParts()  # of tasks that share nothing
SHORTEST_SECONDS = 1e-6  # of a task, so that nothing is divided by zero


class LostWorker(RuntimeError):
    """A message was lost on its way, with the worker that held it, or with its answer. Its text
    says how, if that is known."""


class TooManyLostWorkers(RuntimeError):
    """A task was lost every time it was tried."""

    def __init__(self, times: int, cause: str = "") -> None:
        last = f"; last: {cause}" if cause else ""
        super().__init__(
            f"the worker of a task died {times} times in a row (out of memory?{last}); "
            "use fewer engine.workers, "
            "or a smaller model or batch; finished work is kept"
        )


class WorkerTraceback(RuntimeError):
    """Carries the traceback of a task's exception as text: tracebacks cannot be sent between
    processes."""


class WorkerPool(Protocol):
    """Workers that answer messages. in_flight: how many messages to keep out, so that no worker
    waits."""

    workers: int
    in_flight: int

    def encode(self, fn: Callable[[Any], Any], items: Sequence[Any], threads: int) -> bytes:
        """The message to a worker."""

    def send(self, payload: bytes) -> Any:
        """A handle of the message, under way. Raises LostWorker."""

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
    by_time = int(SECONDS_PER_MESSAGE / max(seconds, SHORTEST_SECONDS))
    by_share = math.ceil(left / (MESSAGES_PER_WORKER * workers))
    return max(1, min(by_share, by_time))


@dataclass(frozen=True)
class Chunk:
    """Tasks first, ..., last - 1; losses: how often they were lost."""

    first: int
    last: int
    losses: int = 0


class ChunkedMap:
    """One call of ``map_in_chunks``: what is under way, and which answers wait for their turn."""

    def __init__(
        self,
        pool: WorkerPool,
        fn: Callable[[Any], Any],
        work: Sequence[Any],
        threads: int,
        retries: int,
    ) -> None:
        self.pool = pool
        self.fn = fn
        self.work = work
        self.threads = threads
        self.retries = retries
        self.flying: dict[Any, Chunk] = {}
        self.answers: dict[int, tuple[Chunk, Any]] = {}  # by first task
        self.sent_tasks = 0
        self.task_seconds: float | None = None

    def iterate_results(self) -> Iterator[Any]:
        """The results in order."""
        due = 0
        while due < len(self.work):
            self._send_ahead()
            self._receive_answer()
            while due in self.answers:
                chunk, (results, error, _) = self.answers.pop(due)
                yield from results
                if error is not None:
                    raise error[0] from WorkerTraceback(error[1])
                due = chunk.last

    def _send_ahead(self) -> None:
        while self.sent_tasks < len(self.work) and len(self.flying) < self.pool.in_flight:
            size = chunk_size(
                len(self.work) - self.sent_tasks, self.pool.workers, self.task_seconds
            )
            last = self.sent_tasks + size
            self._send_chunk(Chunk(self.sent_tasks, last))
            self.sent_tasks = last

    def _send_chunk(self, chunk: Chunk) -> None:
        """Send it until it is under way. Raises TooManyLostWorkers."""
        while True:
            payload = self.pool.encode(self.fn, self.work[chunk.first : chunk.last], self.threads)
            try:
                handle = self.pool.send(payload)
            except LostWorker as loss:
                chunk = self._count_loss(chunk, loss)
                continue
            self.flying[handle] = chunk
            return

    def _receive_answer(self) -> None:
        handle = self.pool.wait(self.flying.keys())
        chunk = self.flying.pop(handle)
        try:
            answer = decode_value(self.pool.receive(handle))
        except LostWorker as loss:
            self._send_chunk(self._count_loss(chunk, loss))
            return
        self.answers[chunk.first] = (chunk, answer)
        self.task_seconds = answer[2] / (chunk.last - chunk.first)

    def _count_loss(self, chunk: Chunk, loss: LostWorker) -> Chunk:
        if chunk.losses >= self.retries:
            raise TooManyLostWorkers(chunk.losses + 1, str(loss)) from None
        return replace(chunk, losses=chunk.losses + 1)


def map_in_chunks(
    pool: WorkerPool,
    fn: Callable[[Any], Any],
    work: Sequence[Any],
    *,
    threads: int = 1,
    retries: int = 2,
) -> Iterator[Any]:
    """fn over work, results in order as they become available.

    A task's own exception is raised as it is, after the results before it. Raises
    TooManyLostWorkers where the same tasks were lost ``retries`` + 1 times.
    """
    run = ChunkedMap(pool, fn, work, threads, retries)
    try:
        yield from run.iterate_results()
    finally:
        pool.stop(run.flying.keys())

"""How tasks are grouped into messages to workers: many short ones at a time, long ones alone.

Tasks of a worker that died are sent again. A task's result depends on nothing but the task, so neither the grouping
nor the worker that runs it changes any result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from privdd.runtime.payload import call, unpacked
from privdd.runtime.workers import LostWorkers

SLICE = 0.2  # seconds of work in one message: results come, and are kept, at least this often
SHARE = 3  # remaining work is spread over so many messages per worker, so that all end at about the same time


class Lost(RuntimeError):
    """The worker that held a message has died."""


class InWorker(RuntimeError):
    """Carries the traceback of a task's exception as text: tracebacks cannot be sent between processes."""


class Pool(Protocol):
    """Workers that answer messages. in_flight: how many messages to keep out, so that no worker waits."""

    workers: int
    in_flight: int

    def send(self, payload: bytes) -> Any: ...

    def wait(self, handles: Collection[Any]) -> Any:
        """One of the handles whose message was answered or lost."""

    def receive(self, handle: Any) -> Any:
        """The answer. Raises Lost."""

    def stop(self, handles: Collection[Any]) -> None:
        """Cancel these messages: their answers are no longer wanted."""


def chunk_size(left: int, workers: int, seconds: float | None) -> int:
    """Tasks in the next message, when one took ``seconds`` (None: not known yet); at least one."""
    if seconds is None:
        return 1
    return max(1, min(math.ceil(left / (SHARE * workers)), int(SLICE / max(seconds, 1e-6))))


@dataclass(frozen=True)
class Chunk:
    """Tasks first, ..., last - 1; tries: how often their worker was lost."""

    first: int
    last: int
    tries: int = 0


def spread(
    pool: Pool, fn: Callable[[Any], Any], work: Sequence[Any], *, threads: int = 1, retries: int = 2
) -> Iterator[Any]:
    """fn over work, results in order as they become available.

    A task's own exception is raised as it is, after the results before it. Raises LostWorkers where
    the worker of the same tasks was lost ``retries`` + 1 times.
    """
    flying: dict[Any, Chunk] = {}
    answers: dict[int, tuple[Chunk, Any]] = {}  # by first task, until their turn comes
    sent, due, pace = 0, 0, None

    def send(chunk: Chunk) -> None:
        flying[pool.send(call(fn, work[chunk.first : chunk.last], threads))] = chunk

    try:
        while due < len(work):
            while sent < len(work) and len(flying) < pool.in_flight:
                last = sent + chunk_size(len(work) - sent, pool.workers, pace)
                send(Chunk(sent, last))
                sent = last
            handle = pool.wait(flying.keys())
            chunk = flying.pop(handle)
            try:
                answers[chunk.first] = chunk, unpacked(pool.receive(handle))
            except Lost:
                if chunk.tries >= retries:
                    raise LostWorkers(chunk.tries + 1) from None
                send(Chunk(chunk.first, chunk.last, chunk.tries + 1))
                continue
            pace = answers[chunk.first][1][2] / (chunk.last - chunk.first)
            while due in answers:
                chunk, (results, error, _) = answers.pop(due)
                yield from results
                if error is not None:
                    raise error[0] from InWorker(error[1])
                due = chunk.last
    finally:
        pool.stop(flying.keys())

"""Timing a part of a long computation: loops that are cut short.

A training loop goes through ``timed_steps``. Within ``truncate_loops`` a loop that has had its time
is left, and what its other steps would have taken is added to ``cpu_seconds``. Results are then
good to be timed, and for nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

LOOP_ALLOWANCE = 0.5  # CPU seconds of one loop, where a run is estimated
# CPU seconds, from which a first step stands for all others; a shorter one may have been slow to
# start
LONG_STEP = 2.0
T = TypeVar("T")
_TRUNCATION: ContextVar[TruncatedLoops | None] = ContextVar("truncation", default=None)


@dataclass
class TruncatedLoops:
    """allowance: CPU seconds of one loop, its first step always; owed: CPU seconds of all steps so
    far that were left out."""

    allowance: float
    owed: float = 0.0

    def run_first_steps(self, loop: Sequence[T]) -> Iterator[T]:
        """The steps of ``loop`` that are run. The first is slower than others, and counts only
        where it is alone."""
        began = warm = self.cpu_seconds()
        for done, item in enumerate(loop):
            if self.cpu_seconds() - began > (
                self.allowance if done > 1 else max(self.allowance, LONG_STEP)
            ):
                if done > 1:
                    each = (self.cpu_seconds() - warm) / (done - 1)
                else:
                    each = self.cpu_seconds() - began
                self.owed += each * (len(loop) - done)
                return
            if done == 1:
                warm = self.cpu_seconds()
            yield item

    def cpu_seconds(self) -> float:
        """CPU seconds of this process, and those that are owed."""
        return time.process_time() + self.owed


@contextmanager
def truncate_loops(allowance: float) -> Iterator[TruncatedLoops]:
    """Within, each loop is left after ``allowance`` CPU seconds."""
    loops = TruncatedLoops(allowance)
    before = _TRUNCATION.get()
    try:
        # inside: an interruption right after it would cut short what trains later
        _TRUNCATION.set(loops)
        yield loops
    finally:
        _TRUNCATION.set(before)


def timed_steps(loop: Sequence[T]) -> Iterator[T]:
    """Over ``loop``; within ``truncate_loops`` over its first steps."""
    loops = _TRUNCATION.get()
    if loops is None:
        return iter(loop)
    return loops.run_first_steps(loop)

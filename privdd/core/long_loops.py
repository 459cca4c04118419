"""Long loops, of which a price runs a part: the first turns of each, and the rest as time that is owed.

A loop of training goes through ``turns``. It is run whole, but for within ``in_part``: there a loop that has had its
time is left, and what its other turns would have taken, as the turns before did, is added to ``spent``. Results are
then those of a shorter training: good to be timed, and for nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

ALLOWANCE = 0.5  # CPU seconds of one loop, where a price is made
LONG_TURN = 2.0  # CPU seconds, from which a first turn stands for all others; a shorter one may have been slow to start
T = TypeVar("T")


@dataclass
class LoopsInPart:
    """allowance: CPU seconds of one loop, its first turn always. So far: owed: CPU seconds of all turns that were left out;
    looped: of all loops, these included; turns: of all loops, run or not; left: loops that were left before their end."""

    allowance: float
    owed: float = 0.0
    looped: float = 0.0
    turns: int = 0
    left: int = 0
    depth: int = 0

    def first(self, loop: Sequence[T]) -> Iterator[T]:
        """The turns of ``loop`` that are run, noted."""
        began = self.spent()
        self.turns += len(loop)
        self.depth += 1
        try:
            yield from self._some(loop)
        finally:
            self.depth -= 1
            self.looped += 0.0 if self.depth else self.spent() - began

    def _some(self, loop: Sequence[T]) -> Iterator[T]:
        """The first turn is slower than others, and counts only where it is alone."""
        began = warm = self.spent()
        for done, item in enumerate(loop):
            if self.spent() - began > (self.allowance if done > 1 else max(self.allowance, LONG_TURN)):
                each = (self.spent() - warm) / (done - 1) if done > 1 else self.spent() - began
                self.owed += each * (len(loop) - done)
                self.left += 1
                return
            if done == 1:
                warm = self.spent()
            yield item

    def spent(self) -> float:
        """CPU seconds of this process, and those that are owed."""
        return time.process_time() + self.owed


_PART: ContextVar[LoopsInPart | None] = ContextVar("part", default=None)


@contextmanager
def in_part(allowance: float) -> Iterator[LoopsInPart]:
    """Within, each loop is left after ``allowance`` CPU seconds."""
    part, before = LoopsInPart(allowance), _PART.get()
    try:
        _PART.set(part)  # inside: an interruption right after it would cut short what trains later
        yield part
    finally:
        _PART.set(before)


def turns(loop: Sequence[T]) -> Iterator[T]:
    """Over ``loop``; within ``in_part`` over its first turns."""
    part = _PART.get()
    return iter(loop) if part is None else part.first(loop)

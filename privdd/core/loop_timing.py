"""Timing a part of a long computation: loops that are cut short, and a limit on CPU seconds.

A training loop goes through ``timed_steps``. It is run whole, but for within ``truncate_loops``: there a loop that has had
its time is left, and what its other steps would have taken, as the steps before did, is added to ``cpu_seconds``. Results
are then those of a shorter training: good to be timed, and for nothing else. ``cpu_time_limit`` stops work that takes
longer than was asked for, whoever wrote it.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

# --- long loops --------------------------------------------------------------------------------
# Long loops, of which a price runs a part: the first turns of each, and the rest as time that is owed.
#
# A loop of training goes through ``timed_steps``. It is run whole, but for within ``truncate_loops``: there a loop that has had its
# time is left, and what its other turns would have taken, as the turns before did, is added to ``cpu_seconds``. Results are
# then those of a shorter training: good to be timed, and for nothing else.


LOOP_ALLOWANCE = 0.5  # CPU seconds of one loop, where a price is made
LONG_STEP = 2.0  # CPU seconds, from which a first turn stands for all others; a shorter one may have been slow to start
T = TypeVar("T")


@dataclass
class TruncatedLoops:
    """allowance: CPU seconds of one loop, its first turn always. So far: owed: CPU seconds of all turns that were left out;
    looped: of all loops, these included; turns: of all loops, run or not; left: loops that were left before their end."""

    allowance: float
    owed: float = 0.0
    looped: float = 0.0
    turns: int = 0
    left: int = 0
    depth: int = 0

    def run_first_steps(self, loop: Sequence[T]) -> Iterator[T]:
        """The turns of ``loop`` that are run, noted."""
        began = self.cpu_seconds()
        self.turns += len(loop)
        self.depth += 1
        try:
            yield from self._yield_until_allowance(loop)
        finally:
            self.depth -= 1
            self.looped += 0.0 if self.depth else self.cpu_seconds() - began

    def _yield_until_allowance(self, loop: Sequence[T]) -> Iterator[T]:
        """The first turn is slower than others, and counts only where it is alone."""
        began = warm = self.cpu_seconds()
        for done, item in enumerate(loop):
            if self.cpu_seconds() - began > (self.allowance if done > 1 else max(self.allowance, LONG_STEP)):
                each = (self.cpu_seconds() - warm) / (done - 1) if done > 1 else self.cpu_seconds() - began
                self.owed += each * (len(loop) - done)
                self.left += 1
                return
            if done == 1:
                warm = self.cpu_seconds()
            yield item

    def cpu_seconds(self) -> float:
        """CPU seconds of this process, and those that are owed."""
        return time.process_time() + self.owed


_TRUNCATION: ContextVar[TruncatedLoops | None] = ContextVar("part", default=None)


@contextmanager
def truncate_loops(allowance: float) -> Iterator[TruncatedLoops]:
    """Within, each loop is left after ``allowance`` CPU seconds."""
    part, before = TruncatedLoops(allowance), _TRUNCATION.get()
    try:
        _TRUNCATION.set(part)  # inside: an interruption right after it would cut short what trains later
        yield part
    finally:
        _TRUNCATION.set(before)


def timed_steps(loop: Sequence[T]) -> Iterator[T]:
    """Over ``loop``; within ``truncate_loops`` over its first turns."""
    part = _TRUNCATION.get()
    return iter(loop) if part is None else part.run_first_steps(loop)


# --- time limit --------------------------------------------------------------------------------
# Work that is stopped when it has taken long, whoever wrote it; for what is measured and then thrown away.


CHECK_INTERVAL, SIGNAL_INTERVAL = 0.1, 1.0  # seconds between two looks at the clock, and between two signals
MAX_SKIPPED_SIGNALS = (
    2  # signals that may find a context being entered or left; work made of short contexts always does
)
LIMIT_SIGNAL = getattr(
    signal, "SIGURG", None
)  # nobody's: a process that does not handle it takes no notice, even of a late one


class TimeLimitExceeded(BaseException):
    """Not an Exception, so that no "except Exception" of the work that is stopped takes it for a fault of its own."""


@contextmanager
def cpu_time_limit(seconds: float, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Raises Overdue inside after so many CPU seconds, again until it is out, between two calls into torch.

    unless: whether it may go on; asked each time. A thread looks at the clock: a timer of CPU time (SIGPROF) would make
    the kernel's clock of CPU seconds jump by 4 ms, and what is measured inside with it. A handler of the caller's own
    gets the signals of others meanwhile, and is back in its place afterwards. While the work enters or leaves a context
    (``with``), the first two tries are skipped: the context would stay open, and later code run without gradients, say.
    Without a bound where threads get no signals: on Windows, and outside of the main thread.
    """
    here = threading.current_thread()
    if (
        LIMIT_SIGNAL is None or here is not threading.main_thread() or signal.getsignal(LIMIT_SIGNAL) is None
    ):  # None: not Python's
        yield
        return

    def handle_signal(number: int, frame: FrameType | None) -> Any:
        if not due.is_set():  # someone else's
            return before(number, frame) if callable(before) else None
        due.clear()
        if over.is_set() or unless():
            return
        if not _is_in_context_manager(frame, caller) or next(waits, None) is None:
            raise TimeLimitExceeded

    def watch_clock() -> None:
        while not over.wait(CHECK_INTERVAL):
            if time.process_time() - began > seconds and here.ident is not None:
                due.set()
                signal.pthread_kill(here.ident, LIMIT_SIGNAL)
                over.wait(SIGNAL_INTERVAL)

    caller, waits = sys._getframe(2), iter(range(MAX_SKIPPED_SIGNALS))
    over, due, began = threading.Event(), threading.Event(), time.process_time()
    watcher = threading.Thread(target=watch_clock, daemon=True)
    before = signal.signal(LIMIT_SIGNAL, handle_signal)
    try:
        watcher.start()
        try:
            yield
        finally:
            over.set()
    finally:
        over.set()  # the signal may have come between the two
        try:
            if watcher.is_alive():
                watcher.join()  # no signal is under way when the handler goes
        finally:
            signal.signal(LIMIT_SIGNAL, before)


def _is_in_context_manager(frame: FrameType | None, caller: FrameType) -> bool:
    """Whether a context is being entered or left in ``frame``, or in what called it, up to ``caller``."""
    while frame is not None and frame is not caller:
        if frame.f_code.co_name in ("__enter__", "__exit__"):
            return True
        frame = frame.f_back
    return False

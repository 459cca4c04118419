"""Work that is stopped when it has taken long, whoever wrote it; for what is measured and then thrown away."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

LOOK, AGAIN = 0.1, 1.0  # seconds between two looks at the clock, and between two signals
PATIENCE = 2  # signals that may find a context being entered or left; work made of short contexts always does
SIGNAL = getattr(
    signal, "SIGURG", None
)  # nobody's: a process that does not handle it takes no notice, even of a late one


class Overdue(BaseException):
    """Not an Exception, so that no "except Exception" of the work that is stopped takes it for a fault of its own."""


@contextmanager
def at_most(seconds: float, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Raises Overdue inside after so many CPU seconds, again until it is out, between two calls into torch.

    unless: whether it may go on; asked each time. A thread looks at the clock: a timer of CPU time (SIGPROF) would make
    the kernel's clock of CPU seconds jump by 4 ms, and what is measured inside with it. A handler of the caller's own
    gets the signals of others meanwhile, and is back in its place afterwards. While the work enters or leaves a context
    (``with``), the first two tries are skipped: the context would stay open, and later code run without gradients, say.
    Without a bound where threads get no signals: on Windows, and outside of the main thread.
    """
    here = threading.current_thread()
    if SIGNAL is None or here is not threading.main_thread() or signal.getsignal(SIGNAL) is None:  # None: not Python's
        yield
        return

    def stop(number: int, frame: FrameType | None) -> Any:
        if not due.is_set():  # someone else's
            return before(number, frame) if callable(before) else None
        due.clear()
        if over.is_set() or unless():
            return
        if not _in_a_context_manager(frame, caller) or next(waits, None) is None:
            raise Overdue

    def watch() -> None:
        while not over.wait(LOOK):
            if time.process_time() - began > seconds and here.ident is not None:
                due.set()
                signal.pthread_kill(here.ident, SIGNAL)
                over.wait(AGAIN)

    caller, waits = sys._getframe(2), iter(range(PATIENCE))
    over, due, began = threading.Event(), threading.Event(), time.process_time()
    watcher = threading.Thread(target=watch, daemon=True)
    before = signal.signal(SIGNAL, stop)
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
            signal.signal(SIGNAL, before)


def _in_a_context_manager(frame: FrameType | None, caller: FrameType) -> bool:
    """Whether a context is being entered or left in ``frame``, or in what called it, up to ``caller``."""
    while frame is not None and frame is not caller:
        if frame.f_code.co_name in ("__enter__", "__exit__"):
            return True
        frame = frame.f_back
    return False

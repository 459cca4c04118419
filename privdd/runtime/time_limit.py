"""Work that is stopped when it has taken long, whoever wrote it; for what is measured and then thrown away."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Stopped(BaseException):
    """Not an Exception, so that no "except Exception" of the work that is stopped takes it for a fault of its own."""


@contextmanager
def at_most(seconds: float, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Raises Stopped inside after so many CPU seconds, again each second until it is out, between two calls into torch.

    unless: whether it may go on; asked each time.
    Without a bound where there are no such signals: on Windows, and outside of the main thread.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        if not unless():
            raise Stopped

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)

"""Work that is stopped when it has taken long, whoever wrote it; for what is measured and then thrown away."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LOOK, AGAIN = 0.1, 1.0  # seconds between two looks at the clock, and between two signals


class Overdue(BaseException):
    """Not an Exception, so that no "except Exception" of the work that is stopped takes it for a fault of its own."""


@contextmanager
def at_most(seconds: float, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Raises Overdue inside after so many CPU seconds, again until it is out, between two calls into torch.

    unless: whether it may go on; asked each time. A thread looks at the clock: a timer of CPU time (SIGPROF) would make
    the kernel's clock of CPU seconds jump by 4 ms, and what is measured inside with it.
    Without a bound where threads get no signals: on Windows, and outside of the main thread.
    """
    here = threading.current_thread()
    if not hasattr(signal, "pthread_kill") or here is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        if not over.is_set() and not unless():
            raise Overdue

    def watch() -> None:
        while not over.wait(LOOK):
            if time.process_time() - began > seconds and here.ident is not None:
                signal.pthread_kill(here.ident, signal.SIGUSR1)
                over.wait(AGAIN)

    over, began = threading.Event(), time.process_time()
    before = signal.signal(signal.SIGUSR1, stop)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        try:
            yield
        finally:
            over.set()
    finally:
        over.set()  # the signal may have come between the two
        watcher.join()  # no signal is under way when the handler goes
        signal.signal(signal.SIGUSR1, before)

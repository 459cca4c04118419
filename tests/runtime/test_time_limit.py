"""Work is stopped in time, and nothing is left behind."""

from __future__ import annotations

import contextlib
import signal
import time

import pytest

from privdd.runtime.time_limit import Stopped, at_most


def test_endless_work_is_stopped_though_it_catches_errors() -> None:
    before, began = signal.getsignal(signal.SIGPROF), time.process_time()
    with pytest.raises(Stopped), at_most(0.1):
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))
    assert 0.05 < time.process_time() - began < 5
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0) and signal.getsignal(signal.SIGPROF) is before


def test_work_that_may_go_on_is_asked_about_and_goes_on() -> None:
    asked: list[int] = []
    with at_most(0.05, unless=lambda: asked.append(1) is None):
        began = time.process_time()
        while time.process_time() - began < 0.2:
            sum(range(1000))
    assert asked


def test_short_work_is_let_be() -> None:
    with at_most(30.0):
        found = sum(range(10))
    assert found == 45 and signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)

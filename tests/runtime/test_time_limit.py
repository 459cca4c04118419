"""Work is stopped in time, and nothing is left behind."""

from __future__ import annotations

import contextlib
import itertools
import signal
import time

import pytest

from privdd.runtime.time_limit import Overdue, at_most


def test_endless_work_is_stopped_though_it_catches_errors() -> None:
    before, began = signal.getsignal(signal.SIGUSR1), time.process_time()
    with pytest.raises(Overdue), at_most(0.1):
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))
    assert 0.05 < time.process_time() - began < 5
    assert signal.getsignal(signal.SIGUSR1) is before


def test_work_that_may_go_on_is_asked_about_and_goes_on() -> None:
    asked: list[int] = []
    with at_most(0.05, unless=lambda: asked.append(1) is None):
        began = time.process_time()
        while time.process_time() - began < 0.2:
            sum(range(1000))
    assert asked


def test_short_work_is_let_be() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with at_most(30.0):
        found = sum(range(10))
    assert found == 45 and signal.getsignal(signal.SIGUSR1) is before


def test_the_clock_of_what_is_measured_stays_fine() -> None:
    """A timer of CPU time makes it jump by a tick, 4 ms."""
    with at_most(30.0):
        looks = [time.process_time() for _ in range(20_000)]
    assert min(b - a for a, b in itertools.pairwise(looks) if b > a) < 1e-3

"""Work is stopped in time, and nothing is left behind."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time

import pytest

from privdd.core.loop_timing import TimeLimitExceeded, cpu_time_limit


def test_endless_work_is_stopped_though_it_catches_errors() -> None:
    before, began = signal.getsignal(signal.SIGURG), time.process_time()
    with pytest.raises(TimeLimitExceeded), cpu_time_limit(0.1):
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))
    assert 0.05 < time.process_time() - began < 5
    assert signal.getsignal(signal.SIGURG) is before


def test_work_that_may_go_on_is_asked_about_and_goes_on() -> None:
    asked: list[int] = []
    with cpu_time_limit(0.05, unless=lambda: asked.append(1) is None):
        began = time.process_time()
        while len(asked) < 2 and time.process_time() - began < 20:
            sum(range(1000))
    assert len(asked) == 2


def burn(seconds: float) -> None:
    began = time.process_time()
    while time.process_time() - began < seconds:
        sum(range(1000))


class Door:
    """Takes long to leave."""

    is_open = False

    def __enter__(self) -> None:
        self.is_open = True

    def __exit__(self, *_: object) -> None:
        burn(0.5)
        self.is_open = False


def test_no_context_is_left_open() -> None:
    """Else a run that follows may have no gradients, or torch.func's transforms of the one before."""
    door = Door()
    with pytest.raises(TimeLimitExceeded), cpu_time_limit(0.05):
        with door:
            pass
        assert not door.is_open
        burn(30.0)
    assert not door.is_open


def test_a_handler_of_the_users_own_gets_its_signals_and_stays() -> None:
    got: list[int] = []

    def own(number: int, frame: object) -> None:
        got.append(number)

    before = signal.signal(signal.SIGURG, own)
    try:
        with pytest.raises(TimeLimitExceeded), cpu_time_limit(0.1):
            signal.raise_signal(signal.SIGURG)
            assert got == [signal.SIGURG]
            burn(30.0)
        assert got == [signal.SIGURG] and signal.getsignal(signal.SIGURG) is own
    finally:
        signal.signal(signal.SIGURG, before)


def test_a_signal_of_someone_else_stops_nothing() -> None:
    with cpu_time_limit(30.0):
        signal.raise_signal(signal.SIGURG)


def test_a_handler_is_back_where_the_start_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: threading.Thread) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGURG)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), cpu_time_limit(0.1):
        pass
    assert signal.getsignal(signal.SIGURG) is before


def test_in_a_thread_work_has_no_bound_and_no_handler_changes() -> None:
    found: list[object] = []

    def work() -> None:
        with cpu_time_limit(0.01):
            burn(0.15)
            found.append(signal.getsignal(signal.SIGURG))

    before, thread = signal.getsignal(signal.SIGURG), threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


def test_short_work_is_let_be() -> None:
    before = signal.getsignal(signal.SIGURG)
    with cpu_time_limit(30.0):
        found = sum(range(10))
    assert found == 45 and signal.getsignal(signal.SIGURG) is before


def test_the_clock_of_what_is_measured_stays_fine() -> None:
    """A timer of CPU time makes it jump by a tick, 4 ms."""
    with cpu_time_limit(30.0):
        looks = [time.process_time() for _ in range(20_000)]
    assert min(b - a for a, b in itertools.pairwise(looks) if b > a) < 1e-3

"""Loops are run whole, but for where a price is made: there their first turns, and the rest is
owed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from privdd.core.loop_timing import timed_steps, truncate_loops

PACKAGES = [
    Path(__file__).resolve().parents[2] / "privdd" / name
    for name in ("training", "distillation", "methods")
]
AT_ONCE = {"ensemble.py"}  # many worlds at once: prices take them from one
USERS = {"own_training.py"}  # stands for a function of the user's own


class Clock:
    """CPU seconds that go by as the loop says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "process_time", lambda: self.now)

    def work(self, seconds: float) -> None:
        self.now += seconds


def test_a_loop_is_run_whole_where_no_price_is_made() -> None:
    assert list(timed_steps(range(5))) == [0, 1, 2, 3, 4] and list(timed_steps("abc")) == [
        "a",
        "b",
        "c",
    ]
    assert list(timed_steps(range(5))) == [0, 1, 2, 3, 4]


def test_what_is_left_out_is_owed_as_the_turns_before_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    run = 0
    with truncate_loops(5.0) as part:
        for at in timed_steps(range(1000)):
            clock.work(3.0 if at == 0 else 1.0)  # the first is slow, and does not stand for others
            run += 1
    assert run == 4 and part.cpu_seconds() == pytest.approx(3 + 999)


def test_a_turn_that_is_long_by_itself_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    run = 0
    with truncate_loops(5.0) as part:
        for _ in timed_steps(range(10)):
            clock.work(20.0)
            run += 1
    assert run == 1 and part.cpu_seconds() == pytest.approx(200)


def test_a_first_turn_that_was_slow_to_start_does_not_stand_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    run = 0
    with truncate_loops(0.5) as part:
        for at in timed_steps(range(1000)):
            clock.work(1.5 if at == 0 else 0.001)
            run += 1
    assert run == 2 and part.cpu_seconds() == pytest.approx(1.5 + 0.999)


def test_a_loop_in_a_loop_is_owed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    run = 0
    with truncate_loops(5.0) as part:
        clock.work(7.0)
        for _ in timed_steps(range(50)):
            for _ in timed_steps(range(200)):
                clock.work(1.0)
                run += 1
    assert run < 10 and part.cpu_seconds() == pytest.approx(7 + 50 * 200)


def test_no_price_reaches_beyond_its_end_or_its_thread() -> None:
    """A run that trained in part would be audited as if it were whole."""
    elsewhere: list[int] = []
    with pytest.raises(KeyboardInterrupt), truncate_loops(0.0):
        with pytest.raises(ValueError), truncate_loops(0.0):
            raise ValueError
        thread = threading.Thread(target=lambda: elsewhere.extend(timed_steps(range(1000))))
        thread.start()
        thread.join()
        assert elsewhere == list(range(1000)) and next(timed_steps(range(5))) == 0
        raise KeyboardInterrupt
    whole = range(1000)
    assert not isinstance(timed_steps(whole), Generator) and list(timed_steps(whole)) == list(whole)


def test_short_loops_are_run_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with truncate_loops(5.0) as part:
        for _ in timed_steps(range(4)):
            clock.work(1.0)
    assert part.cpu_seconds() == 4.0 and not part.owed


def test_every_loop_of_steps_can_be_run_in_part() -> None:
    """Else the price of a method with such a loop takes as long as a round of it."""
    named = re.compile(
        r"for .* in range\(.*(steps|iterations|epochs|reads|turns|matches|networks|total)"
    )
    files = [
        file
        for package in PACKAGES
        for file in package.rglob("*.py")
        if file.name not in AT_ONCE | USERS
    ]
    assert len(files) > 30
    assert [
        f"{file.name}: {line.strip()}"
        for file in files
        for line in file.read_text().splitlines()
        if named.search(line)
    ] == []

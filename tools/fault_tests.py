"""A plugin of pytest for tools/mutate.py: which tests reach a fault's place, what each takes, and
the tests that a planted fault meets, in their order and within their time.

Two runs use it. In the first, each place holds a probe, a call of ``reach``, and nothing is wrong:
``NOTES`` names the file that takes a line for each probe that a test reached, and for each test
that ended. In the second a fault is planted: ``ORDER`` names the file with the tests to run, an id
a line, and ``SECONDS`` says how long they may take together."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NOTES = "PRIVDD_FAULT_NOTES"
ORDER = "PRIVDD_FAULT_TESTS"
SECONDS = "PRIVDD_FAULT_SECONDS"
FIXTURE = "PRIVDD_FAULT_FIXTURE"  # the shared one that is being set up: all of its users reach
OUT_OF_TIME = 75  # exit status

_noted: set[tuple[int, str, str]] = set()
_failed: set[str] = set()


def reach(number: int) -> None:
    """Note that the running test, in this process or in one that it started, is at a place."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    fixture = os.environ.get(FIXTURE, "")
    if (number, test, fixture) not in _noted:
        _noted.add((number, test, fixture))
        _note(number=number, test=test, fixture=fixture)


def _note(**fields: Any) -> None:
    if NOTES in os.environ:
        with Path(os.environ[NOTES]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    is_shared = fixturedef.scope != "function"
    if is_shared:
        outer = os.environ.get(FIXTURE, "")
        os.environ[FIXTURE] = fixturedef.argname
    try:
        return (yield)
    finally:
        if is_shared:
            os.environ[FIXTURE] = outer


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.passed:
        _failed.add(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start = time.perf_counter()
    try:
        return (yield)
    finally:
        seconds = time.perf_counter() - start
        is_passed = item.nodeid not in _failed
        fixtures = list(getattr(item, "fixturenames", ()))
        _note(ended=item.nodeid, seconds=seconds, passed=is_passed, fixtures=fixtures)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if ORDER in os.environ:
        ids = Path(os.environ[ORDER]).read_text(encoding="utf-8").splitlines()
        places = {name: place for place, name in enumerate(ids)}
        items[:] = [item for item in items if item.nodeid in places]
        items.sort(key=lambda item: places[item.nodeid])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """The clock starts when all modules are imported and all tests collected."""
    if SECONDS in os.environ:
        clock = threading.Timer(float(os.environ[SECONDS]), os._exit, [OUT_OF_TIME])
        clock.daemon = True
        clock.start()

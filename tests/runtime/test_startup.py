"""Workers of a command are forked from one process that has loaded what they need; others start
from nothing."""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from privdd.cli import main as command_line
from privdd.runtime import startup

ROOT = Path(__file__).parents[2]
COMMAND = """
import json, os, sys
from importlib.machinery import ModuleSpec
sys.modules["__main__"].__spec__ = ModuleSpec({name!r}, None)
from privdd.runtime.engine import Engine
from privdd.runtime.startup import SINGLE_THREADED, start_forkserver
from tests.runtime.crash_tasks import Deadly, origin, run
os.environ["MKL_NUM_THREADS"] = "2"
before = {{name: os.environ.get(name) for name in SINGLE_THREADED}}
forked = start_forkserver(["tests.runtime.crash_tasks"], {device!r})
assert before == {{name: os.environ.get(name) for name in SINGLE_THREADED}}
engine = Engine("processes", workers=2)
tasks = [Deadly(i, {marker!r}, times=i == 1) for i in range(3)]
draws = [d.tolist() for d in engine.map(run, tasks)]
first = engine.map(origin, range(3))
print(json.dumps([forked, os.getpid(), list(first), draws]))
"""


def told(
    tmp_path: Path, name: str, device: str = "cpu", **more: str
) -> tuple[bool, int, list[list[int]], list[list[float]]]:
    """(whether workers are forked, the program's number, of each task those of worker and its
    parent, draws)"""
    code = COMMAND.format(name=name, device=device, marker=str(tmp_path / "mark"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **more}
    made = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    forked, own, places, draws = json.loads(made.stdout.splitlines()[-1])
    return forked, own, places, draws


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="forked on Linux only")
def test_a_commands_workers_are_forked_and_draw_the_same(tmp_path: Path) -> None:
    """One of them is killed on the way, and its task is run again."""
    forked, own, places, draws = told(tmp_path, "privdd.audit")
    assert forked
    assert {parent for _, parent, _ in places}.isdisjoint({own})
    assert len({parent for _, parent, _ in places}) == 1
    assert all(loaded for *_, loaded in places)
    usual, own, places, same = told(tmp_path, "somebody.elses")
    assert not usual
    assert {parent for _, parent, _ in places} == {own}
    assert draws == same


@pytest.mark.nightly
def test_none_is_forked_where_a_gpu_may_be_in_use(tmp_path: Path) -> None:
    forked, own, places, _ = told(tmp_path, "privdd.audit", "cuda")
    assert not forked
    assert {parent for _, parent, _ in places} == {own}


@pytest.mark.nightly
def test_none_is_forked_where_no_socket_can_be_made(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    deep.mkdir(parents=True)
    forked, own, places, _ = told(tmp_path, "privdd.audit", TMPDIR=str(deep))
    assert not forked
    assert {parent for _, parent, _ in places} == {own}


def test_a_program_of_a_user_is_never_imported_again() -> None:
    """Here that is the test runner."""
    assert not startup.start_forkserver(["torch"], "cpu")
    assert startup.worker_context() is None
    assert multiprocessing.parent_process() is None
    startup.wait_for_parent()  # returns


def test_what_workers_load_is_there() -> None:
    """A fork server passes over a module that it cannot find, and says nothing."""
    for module in {name for names in command_line.WORKER_MODULES.values() for name in names}:
        importlib.import_module(module)


@pytest.mark.nightly(
    cases=[
        "typed0-asked0",
        "typed1-asked1",
        "typed3-asked3",
        "typed5-asked5",
        "typed6-asked6",
        "typed7-asked7",
    ]
)
@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        (["engine=processes"], [(command_line.WORKER_MODULES["audit"], "cpu")]),
        (["engine=processes", "device=cuda"], [(command_line.WORKER_MODULES["audit"], "cuda")]),
        ([], []),  # one core (tests/conftest.py)
        (["engine.workers=2"], [(command_line.WORKER_MODULES["audit"], "cpu")]),
        (["engine.workers=2", "preset=smoke"], []),  # once it is chosen, if it is
        (["engine.workers=2", "device=cuda"], []),
        (["engine.workers=2", "-m", "seed=0,1"], []),
        (["engine=serial"], []),
        (["engine=processes", "-m", "seed=0,1"], []),
        (["engine=processes", "--dry-run"], []),
        (["engine=processes", "resume=somewhere"], []),
        (["engine=processes", "run=somewhere"], []),
        (["engine=processes", "algo=nobody"], []),
    ],
)
def test_it_starts_once_a_command_was_read(
    typed: list[str], asked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):
        pass

    def enough(*_: object) -> None:
        raise Enough

    calls: list[object] = []
    monkeypatch.setattr(command_line, "start_forkserver", lambda *given: calls.append(given))
    monkeypatch.setattr(command_line, "_check_with_torch", enough)
    monkeypatch.setattr(sys, "argv", ["privdd.audit", *typed])
    with pytest.raises((Enough, ValueError)):
        command_line._run_command("audit", lambda *_: 0)
    assert calls == asked


def test_no_garbage_is_collected_while_modules_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first loading made is left out of every later collection; garbage of what ran before
    a second one is not."""
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(frozen)))
    assert gc.isenabled()
    with startup.loading_modules():
        assert not gc.isenabled()
    assert gc.isenabled() and not frozen
    with pytest.raises(KeyError), startup.loading_modules():
        raise KeyError
    assert gc.isenabled()
    monkeypatch.delitem(sys.modules, "torch")
    with startup.loading_modules():
        pass
    assert frozen == [0]

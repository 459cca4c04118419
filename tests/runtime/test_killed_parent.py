"""Workers end soon after a parent that was killed, and so do the pipes that they hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.random_kills import WORD, alive

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
PATIENCE = 60  # seconds on a busy machine; workers that nobody ends nap for ten minutes
PARENT = """
import os, signal, sys, time
from importlib.machinery import ModuleSpec
from privdd.runtime.startup import start_forkserver
if {forked}:
    sys.modules["__main__"].__spec__ = ModuleSpec("privdd.audit", None)
    start_forkserver(["torch"], "cpu")
from privdd.runtime.engine import Engine
from tests.runtime.crash_tasks import nap
for number in Engine("processes", workers=2).map(nap, [0.0, 0.0, {long}, {long}]):
    print(number, flush=True)
"""


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "from nothing"])
@pytest.mark.parametrize("long", [600.0, 0.0], ids=["busy", "idle"])
def test_no_worker_outlives_a_killed_parent(long: float, forked: bool) -> None:
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), WORD: token}
    code = PARENT.format(long=long, forked=forked) + ("" if long else "time.sleep(600)\n")
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    for _ in range(2 if long else 4):  # so the workers are there
        parent.stdout.readline()
    assert len(alive(token)) >= 3
    parent.kill()
    began = time.monotonic()
    try:
        parent.communicate(timeout=PATIENCE)  # ends once no process holds the pipe
        while alive(token) and time.monotonic() - began < PATIENCE:
            time.sleep(0.1)
        assert alive(token) == {}
    finally:
        for pid in alive(token):
            os.kill(pid, signal.SIGKILL)

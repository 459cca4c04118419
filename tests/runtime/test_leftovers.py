"""What a killed run started is ended; what others started is not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = """
import subprocess, sys, time
from privdd.runtime import leftovers
before = subprocess.Popen(["sleep", "60"])
leftovers.watch()
after = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(before.pid, after.pid, flush=True)
sys.stdin.read() if sys.argv[1] == "ends" else time.sleep(60)
"""


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in (Path(f"/proc/{process}/status")).read_text()
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows the environment of a process")
@pytest.mark.parametrize("how", ["killed", "ends"])
def test_what_a_run_started_ends_with_it(how: str) -> None:
    run = subprocess.Popen([sys.executable, "-c", RUN, how], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert run.stdout is not None and run.stdin is not None
    before, after = map(int, run.stdout.readline().split())
    try:
        assert alive(before) and alive(after)
        run.kill() if how == "killed" else run.stdin.close()
        deadline = time.monotonic() + 60  # seconds on a busy machine; about one and a half otherwise
        while alive(after) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not alive(after) and alive(before)
    finally:
        run.kill()
        run.wait()
        subprocess.run(["kill", "-9", str(before), str(after)], check=False, capture_output=True)

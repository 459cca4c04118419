"""What a killed run started is ended; what others started is not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = """
import subprocess, sys, time
from privdd.runtime import ray_cleanup
other = subprocess.Popen(["sleep", "601"])
ray_cleanup.start_watcher("PARENT=1")
command = ["sh", "-c", "PARENT=1; sleep 602 & echo $!; wait"]
parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
child = int(parent.stdout.readline())
# takes as long as the guard takes to start
subprocess.run([sys.executable, "-c", "import privdd.runtime.ray_cleanup"])
time.sleep(2.5)  # and to look, twice
parent.kill()
print(other.pid, child, flush=True)
sys.stdin.read() if sys.argv[1] == "ends" else time.sleep(60)
"""


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in (Path(f"/proc/{process}/status")).read_text()
    except OSError:
        return False


@pytest.mark.nightly(cases=["ends"])
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the state of a process as Linux tells it"
)
@pytest.mark.parametrize("how", ["killed", "ends"])
def test_what_a_run_started_ends_with_it(how: str) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, how], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert run.stdout is not None and run.stdin is not None
    other, orphan = map(int, run.stdout.readline().split())
    try:
        assert alive(other) and alive(orphan)
        run.kill() if how == "killed" else run.stdin.close()
        # seconds on a busy machine; about one and a half otherwise
        deadline = time.monotonic() + 60
        while alive(orphan) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not alive(orphan) and alive(other)
    finally:
        run.kill()
        run.wait()
        subprocess.run(["kill", "-9", str(other), str(orphan)], check=False, capture_output=True)

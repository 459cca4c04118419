"""Ends what Ray started for a run that was killed: its agents outlive the run by several seconds, or by more on a busy machine.

    python -m privdd.runtime.leftovers MARK < PIPE

Waits until the run closes its end of the pipe, however it ends, and then kills every process that has MARK in its
environment. Linux alone shows the environment of processes; elsewhere Ray's own clean-up has to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

NAME = "PRIVDD_RAY_CLUSTER"
_pipes: list[subprocess.Popen[bytes]] = []  # held open for as long as this process lives
PATIENCE = 1.0  # seconds for Ray to end by itself, which it does after an orderly end


def watch() -> None:
    """From here on, what this process starts ends with it. Call it before Ray's processes start."""
    if not Path("/proc/self/environ").exists():
        return
    mark = os.environ[NAME] = uuid.uuid4().hex
    here = [sys.executable, "-m", "privdd.runtime.leftovers", mark]
    bare = {name: value for name, value in os.environ.items() if name != NAME} | {
        "PYTHONPATH": os.pathsep.join(sys.path)
    }
    # a session of its own: Ctrl-C is for the run; stdin stays open as long as the run lives
    _pipes.append(subprocess.Popen(here, stdin=subprocess.PIPE, env=bare, start_new_session=True))


def marked(mark: str) -> list[int]:
    """The processes that were started with ``mark``; this one's own environment is as it was at its start."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone, or another user's
            if f"{NAME}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return found


def end(mark: str) -> None:
    for _ in range(3):  # one may have started another meanwhile
        for process in marked(mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.2)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    time.sleep(PATIENCE)
    end(sys.argv[1])

"""Ends what Ray started for a run that was killed: its agents would outlive the run, some of them
for good.

    python -m privdd.runtime.ray_cleanup PID WORD < PIPE

Keeps a list of the descendants of process PID that come from a child with WORD in its command line;
when that process closes its end of the pipe, however it ends, they are killed. An orderly end
leaves none of them."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time

import psutil

CHECK_SECONDS = 1.0  # seconds between looks at what has been started
GRACE_SECONDS = 1.0  # seconds for Ray to end by itself
_pipes: list[subprocess.Popen[bytes]] = []  # held open for as long as this process lives


def start_watcher(word: str) -> None:
    """From here on, the children whose command line holds ``word``, and what they start, end with
    this process."""
    here = [sys.executable, "-m", "privdd.runtime.ray_cleanup", str(os.getpid()), word]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # a session of its own: Ctrl-C is for the run
    _pipes.append(subprocess.Popen(here, stdin=subprocess.PIPE, env=paths, start_new_session=True))


def find_descendants(run: psutil.Process, word: str) -> set[psutil.Process]:
    """The children of ``run`` with ``word`` in their command line, and all their descendants. A
    process is known by its number and its start."""
    descendants = set()
    with contextlib.suppress(psutil.Error):  # one is gone meanwhile: the next look sees the others
        for child in run.children():
            if child.pid != os.getpid() and any(word in part for part in child.cmdline()):
                descendants |= {child, *child.children(recursive=True)}
    return descendants


def wait_for_run_end(run: psutil.Process, word: str) -> set[psutil.Process]:
    """The processes started by the end of the run. An agent loses its parent then, so it has to be
    known before."""
    started: set[psutil.Process] = set()
    while not select.select([sys.stdin], [], [], CHECK_SECONDS)[0]:
        started = {
            process for process in started | find_descendants(run, word) if process.is_running()
        }
    return started


def kill_processes(started: set[psutil.Process]) -> None:
    for process in started:
        with contextlib.suppress(psutil.Error):  # it has ended by itself
            process.kill()


if __name__ == "__main__":
    left = wait_for_run_end(psutil.Process(int(sys.argv[1])), sys.argv[2])
    time.sleep(GRACE_SECONDS)
    kill_processes(left)

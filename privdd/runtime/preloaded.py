"""A process that imports what workers need while the main one still reads the settings; workers are forked from it.

A worker that starts from nothing takes some seconds of CPU time to import torch and the rest. Only for this project's own
commands: as always with ``multiprocessing``, a forked worker imports the main file of the program once more, and not
every script of a user bears that. And only without a GPU, which a process that was forked after a look at it cannot use.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

KIND = "forkserver"
# of libraries beside torch, whose threads are set task by task
SINGLE = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
_started: list[str] = []


def can_fork(device: str) -> bool:
    """Whether workers of this project's commands are forked there. device: cpu or cuda."""
    return sys.platform == "linux" and device == "cpu"


def start(modules: Sequence[str], device: str) -> bool:
    """Begin to import ``modules`` in a process beside this one -> whether workers will be forked from it."""
    if not (can_fork(device) and _command()):
        return False
    if not _started:
        multiprocessing.set_forkserver_preload([*modules])
        try:
            with _single():
                forkserver.ensure_running()
        except OSError:  # it listens in the temporary folder, whose path may be too long for a socket
            return False
        _started.extend(modules)
    return True


def context() -> BaseContext | None:
    """What starts workers: forks of that process once it was started, else None: each from nothing."""
    return multiprocessing.get_context(KIND) if _started else None


def wait_for_parent() -> None:
    """In a forked worker: wait until the process that asked for it has ended; in any other, return at once."""
    parent = multiprocessing.parent_process()
    if parent is not None and multiprocessing.get_start_method(allow_none=True) == KIND:
        parent.join()


def _command() -> bool:
    """Whether the program is ``python -m privdd.something``: importing its main file again does nothing."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("privdd.")


@contextmanager
def _single() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in SINGLE}
    os.environ.update(SINGLE)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value

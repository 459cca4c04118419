"""One process at a time writes a run folder.

The lock belongs to an open file, so the operating system lets go of it when its process ends, however that happens: a
killed run leaves a file behind that locks nothing, and the next run takes it over.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from privdd.core.errors import BadConfig

NAME = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made where there is none. Raises BadConfig, naming the process that holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / NAME
    handle = _acquired(file)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        file.unlink(missing_ok=True)  # while it is still held: whoever waits for this file sees that it is gone
        os.close(handle)


def _acquired(file: Path) -> int:
    """A handle of the file that is there now, locked. Another process may remove it between opening and locking."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(handle, file):
                return handle
        except BlockingIOError:
            owner = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(handle)
            raise BadConfig(f"{file.parent}: {owner} is writing this run; wait for it, or use another folder") from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False

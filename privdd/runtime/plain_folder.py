"""A folder that may come from a stranger: only plain files and folders below it, so nothing leads out of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from privdd.runtime.files import DamagedRun

MOST_FILES = 2_000_000


def check_folder(path: Path) -> None:
    """Raises DamagedRun, one line, for a link, a pipe, a socket or a device anywhere below ``path``.

    A link would let a run folder read or replace files outside it. ``path`` itself may be a link: its name was typed.
    """
    for _ in plain_files(path):
        pass


def plain_files(path: Path) -> Iterator[str]:
    """The names of all files below ``path``, relative to it, with "/" between the parts, in no fixed order.

    Raises DamagedRun as ``check_folder`` does, and for more than two million files.
    """
    waiting, count = [""], 0
    while waiting:
        inside = waiting.pop()
        for entry in _entries(path, inside):
            name = f"{inside}{entry.name}"
            count += 1
            if count > MOST_FILES:
                raise DamagedRun(f"{path}: more than {MOST_FILES} files")
            try:
                kind = entry.stat(follow_symlinks=False).st_mode
            except FileNotFoundError:  # another process has just replaced it
                continue
            if stat.S_ISDIR(kind):
                waiting.append(f"{name}/")
            elif stat.S_ISREG(kind):
                yield name
            else:
                what = "a link" if stat.S_ISLNK(kind) else "neither a file nor a folder"
                raise DamagedRun(f"{path}: {name!r} is {what}; a run folder holds plain files only")


def _entries(path: Path, inside: str) -> list[os.DirEntry[str]]:
    with os.scandir(path / inside) as found:
        return list(found)

"""Where downloads are kept, and downloads through torchvision that give up on a silent server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privdd.core.folders import DATA, cache_folder
from privdd.data.dataset import DataNotFound
from privdd.data.torchvision_compat import torchvision


def data_folder() -> Path:
    """Where downloads go when data.root is not set. Raises DataNotFound for a user without a home."""
    folder = cache_folder(DATA)
    if folder is None:
        raise DataNotFound(f"no folder for downloads: set {DATA} or data.root")
    return folder


TIMEOUT = 20.0  # seconds that a silent server may hold a download up


def fetched(cls: str, root: Path, download: bool = True, **arguments: Any) -> Any:
    """The torchvision data set, from ``root`` when complete there, else downloaded into it where allowed."""
    kind = getattr(torchvision("torchvision.datasets"), cls)
    try:
        return kind(str(root), download=False, **arguments)
    except (RuntimeError, FileNotFoundError):
        if not download:
            raise
        with _patience(TIMEOUT):
            return kind(str(root), download=True, **arguments)


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)

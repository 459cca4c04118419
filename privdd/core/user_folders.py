"""Where this machine keeps what outlives a run: downloaded data, and measured speeds."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

DATA_VARIABLE = "PRIVDD_DATA"  # downloads, where data.root is not set
CACHE_VARIABLE = "PRIVDD_CACHE"  # how fast this machine trains shadow models one by one and side by side


def cache_folder(variable: str) -> Path | None:
    """The folder that the environment's ``variable`` (DATA or CACHE) names, else privdd in $XDG_CACHE_HOME or ~/.cache.

    None for a user without a home.
    """
    own, shared = os.environ.get(variable), os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):
        return Path(own) if own else Path(shared or Path.home() / ".cache") / "privdd"
    return None

"""Whether a command line names a recording. Quick to import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

HEAD = "tap.json"
CLIENTS = "clients"  # recordings of clients, beside the server's


def is_recording(folder: Path) -> bool:
    """Whether a tap wrote into this folder: a server's recording, or clients' below it."""
    return (folder / HEAD).is_file() or any(folder.glob(f"{CLIENTS}/*/{HEAD}"))


def recording_named(argv: Sequence[str]) -> Path | None:
    """The folder of ``run=DIR`` where a tap wrote into it."""
    found = [Path(item.removeprefix("run=")) for item in argv if item.startswith("run=")]
    return found[0] if len(found) == 1 and is_recording(found[0]) else None

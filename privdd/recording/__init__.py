"""Whether a folder, or a command line, names a recording. Quick to import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

HEAD_FILE = "tap.json"
CLIENTS_FOLDER = "clients"  # recordings of clients, beside the server's


def is_recording_folder(folder: Path) -> bool:
    """Whether a tap wrote into this folder: a server's recording, or clients' below it."""
    return (folder / HEAD_FILE).is_file() or any(folder.glob(f"{CLIENTS_FOLDER}/*/{HEAD_FILE}"))


def find_recording_argument(argv: Sequence[str]) -> Path | None:
    """The folder of ``run=DIR`` where a tap wrote into it."""
    found = [Path(item.removeprefix("run=")) for item in argv if item.startswith("run=")]
    return found[0] if len(found) == 1 and is_recording_folder(found[0]) else None

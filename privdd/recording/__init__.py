"""Whether a folder is a recording. Quick to import."""

from __future__ import annotations

from pathlib import Path

HEAD_FILE = "tap.json"
CLIENTS_FOLDER = "clients"  # recordings of clients, beside the server's


def is_recording_folder(folder: Path) -> bool:
    """Whether a tap wrote into this folder: a server's recording, or clients' below it."""
    return (folder / HEAD_FILE).is_file() or any(folder.glob(f"{CLIENTS_FOLDER}/*/{HEAD_FILE}"))

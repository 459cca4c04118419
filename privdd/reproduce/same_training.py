"""Several entries show the same training (FedFed's tables on one stand-in, FedRD's tables): it is done once, then copied."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from privdd.cli.paper_rows import row_config
from privdd.cli.read_settings import fingerprint, plain
from privdd.cli.stored_config import read_stored
from privdd.runtime.files import read_json

FINISHED = "training.json"
DAMAGED = (ValueError, OSError, KeyError, TypeError)


def same_training(overrides: Sequence[str], seed: int, rows: Path) -> Path | None:
    """A finished row of any entry below ``rows`` (rows/EXPERIMENT/ROW) with the same settings, the seed among them.

    It must have kept the same messages, or those of all clients. The text around a row (its paper's title, printed
    numbers) may differ: no number depends on it.
    """
    config = row_config(overrides, seed)
    wanted, capture = fingerprint(config), plain(config.capture)
    for file in sorted(rows.glob(f"*/*/{FINISHED}")):
        try:
            if read_json(file.parent / "manifest.json")["config"] != wanted:
                continue
            kept = plain(read_stored(file.parent).capture)
            if kept in (capture, {**capture, "clients": "all"}):
                return file.parent
        except DAMAGED:  # it is not this row's fault, which trains itself
            continue
    return None


def copy_row(source: Path, target: Path) -> None:
    """All files of a finished row but the sweep's own mark, the one that says "finished" last."""
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("point.json", FINISHED))
    shutil.copy2(source / FINISHED, target / FINISHED)

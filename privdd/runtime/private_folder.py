"""Folders whose files must not travel: with a mode, an ignore file, and never where a packer takes them along.

Flower packs every JSON, yaml, Markdown and Python file below the folder of an app into the bundle that all nodes get.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

from privdd.core.validation import BadConfig

IGNORE = ".gitignore"
PROJECT = "pyproject.toml"
LOOKED_AT = 10_000  # folders below a private one, at most


def state_folder() -> Path:
    """The folder for privdd's own state, outside all projects: $XDG_STATE_HOME/privdd."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "privdd"


def make_private(folder: Path) -> None:
    """The folder, for its owner alone where it is new, with a .gitignore. Raises OSError where it cannot be made."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    ignore_all(folder)


def ignore_all(folder: Path) -> None:
    """A .gitignore in a folder, which is made where there is none, that names all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / IGNORE).exists():
        (folder / IGNORE).write_text("*\n", encoding="utf-8")


def check_private(folder: Path, what: str) -> None:
    """Raises BadConfig where ``folder`` lies in, beside or around a Flower app. what: is kept there, in words."""
    for app in _apps(folder.resolve()):
        raise BadConfig(
            f"{folder}: {what} would lie with the Flower app in {app}, and flwr packs json files there into what all "
            "nodes get; use a folder outside it, or beside_app=true if it is packed by nobody"
        )


def _apps(folder: Path) -> Iterator[Path]:
    for place in (folder, *folder.parents):
        if _is_app(place):
            yield place
    for number, (below, inside, _) in enumerate(os.walk(folder)):
        inside.sort()
        if number and _is_app(Path(below)):
            yield Path(below)
        if number >= LOOKED_AT:
            return


def _is_app(folder: Path) -> bool:
    file = folder / PROJECT
    try:
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    except OSError:
        return False
    try:
        return "flwr" in tomllib.loads(text).get("tool", {})
    except (tomllib.TOMLDecodeError, AttributeError, TypeError):
        return "tool.flwr" in text

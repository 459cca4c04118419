"""Which commit of privdd is running, read from the files of its git folder: no program is started."""

from __future__ import annotations

import re
from pathlib import Path

import privdd

HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def commit(package: Path | None = None) -> str | None:
    """The checked-out commit of the source tree that holds ``package``; None where it is no git checkout.

    Changes that were not committed do not show. package: the folder privdd, unset for the one that runs.
    """
    git = (package or Path(privdd.__file__).parent).parent / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="ascii").strip()
        if head.startswith("ref: "):
            head = _referred(git, head.removeprefix("ref: "))
    except (OSError, ValueError):
        return None
    return head if HASH.fullmatch(head) else None


def _referred(git: Path, name: str) -> str:
    if (git / name).is_file():
        return (git / name).read_text(encoding="ascii").strip()
    packed = (git / "packed-refs").read_text(encoding="ascii").splitlines()
    return next((line.split(" ")[0] for line in packed if line.endswith(f" {name}")), "")

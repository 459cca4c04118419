"""When a run was finished, and with which commit of privdd: for the manifest, and no number depends on it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
PACKAGE = Path(__file__).resolve().parents[1]


def provenance() -> dict[str, str | None]:
    """{"date": UTC, to the second, "commit": in hexadecimal, None where privdd runs from no git checkout}."""
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(PACKAGE)}


def commit(package: Path) -> str | None:
    """The checked-out commit of the source tree that holds the folder ``package``, read from git's files.

    No program is started, and changes that were not committed do not show.
    """
    git = package.parent / ".git"
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

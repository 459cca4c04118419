"""The manifest of a finished run: its seal, which lists the sha256 of every file, its date and its commit.

A seal shows that nothing changed since it was made, not who made it: whoever edits a file can seal again. What the
numbers say of each other is checked by ``privdd.verification``; who vouches for them, by a signature. No number depends on
date and commit.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from privdd.runtime.files import DamagedRun, is_half_written, list_plain_files, read_json, write_json

# A seal shows that nothing changed since it was made, not who made it: whoever edits a file can seal again. What the
# numbers say of each other is checked by ``privdd.verification``; who vouches for them, by a signature.

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
PAGE = "report.html"
CARD = "card.json"  # the page's twin for other programs
FIGURES = "figures/"
# a sweep's own note; a print of the page; what tells a run's secret, which may be left out of what is given to others
UNSEALED = frozenset({MANIFEST, SIGNATURE, "point.json", "report.pdf", ".lock", "state/secret.json"})
FILES_KEY, PAGE_KEY, SEAL_KEY = (
    "files",
    "page",
    "seal",
)  # keys of the manifest; the page is redrawn from the files at any time
PLOTTING_KEY = "drawn_with"


def file_sha256(file: Path) -> str:
    """The digest of a file's bytes, in hexadecimal."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def is_page_file(name: str) -> bool:
    """Whether a file was drawn from the others."""
    return name in (PAGE, CARD) or name.startswith(FIGURES)


def file_digests(folder: Path) -> dict[str, str]:
    """Name -> sha256 of every file below ``folder`` that a seal covers. Raises DamagedRun for a link."""
    names = sorted(name for name in list_plain_files(folder) if name not in UNSEALED and not is_half_written(name))
    return {name: file_sha256(folder / name) for name in names}


def seal_folder(folder: Path) -> None:
    """Write the digests of all files into the manifest, as the last step of a run."""
    found = file_digests(folder)
    kept = {name: mark for name, mark in found.items() if not is_page_file(name)}
    drawn = {name: mark for name, mark in found.items() if is_page_file(name)}
    _write_manifest(
        folder, {**_read_manifest(folder), FILES_KEY: kept, PAGE_KEY: drawn, PLOTTING_KEY: plotting_library()}
    )


def seal_page(folder: Path) -> None:
    """Seal a page that was drawn anew; a folder that was never sealed stays unsealed."""
    manifest = _read_manifest(folder)
    if FILES_KEY in manifest:
        drawn = {name: file_sha256(folder / name) for name in sorted(list_plain_files(folder)) if is_page_file(name)}
        _write_manifest(folder, {**manifest, PAGE_KEY: drawn, PLOTTING_KEY: plotting_library()})


def plotting_library() -> str:
    """The plotting library with its version: another version draws other bytes."""
    return f"matplotlib {version('matplotlib')}"


def _read_manifest(folder: Path) -> dict[str, Any]:
    found = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    if not isinstance(found, dict):
        raise DamagedRun(f"{folder / MANIFEST}: an object is needed")
    return found


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    write_json(folder / MANIFEST, {**manifest, SEAL_KEY: compute_seal(manifest)})


def compute_seal(manifest: Mapping[str, Any]) -> str:
    """The digest of all of the manifest but the seal itself."""
    return hashlib.sha256(_canonical_json({k: v for k, v in manifest.items() if k != SEAL_KEY})).hexdigest()


def signed_bytes(manifest: Mapping[str, Any]) -> bytes:
    """The signed part of the manifest: everything but the entries that change when the page is drawn anew."""
    return _canonical_json({k: v for k, v in manifest.items() if k not in (SEAL_KEY, PAGE_KEY, PLOTTING_KEY)})


def _canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


COMMIT_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
PACKAGE = Path(__file__).resolve().parents[1]


def run_provenance() -> dict[str, str | None]:
    """{"date": UTC, to the second, "commit": in hexadecimal, None where privdd runs from no git checkout}."""
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": source_commit(PACKAGE)}


def source_commit(package: Path) -> str | None:
    """The checked-out commit of the source tree that holds the folder ``package``, read from git's files.

    No program is started, and changes that were not committed do not show.
    """
    git = package.parent / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="ascii").strip()
        if head.startswith("ref: "):
            head = _resolve_reference(git, head.removeprefix("ref: "))
    except (OSError, ValueError):
        return None
    return head if COMMIT_HASH.fullmatch(head) else None


def _resolve_reference(git: Path, name: str) -> str:
    if (git / name).is_file():
        return (git / name).read_text(encoding="ascii").strip()
    packed = (git / "packed-refs").read_text(encoding="ascii").splitlines()
    return next((line.split(" ")[0] for line in packed if line.endswith(f" {name}")), "")

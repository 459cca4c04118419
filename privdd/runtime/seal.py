"""The seal of a finished run: manifest.json lists the sha256 of every file of the folder, and of itself.

A seal shows that nothing changed since it was made, not who made it: whoever edits a file can seal again. What the
numbers say of each other is checked by ``privdd.verifying``; who vouches for them, by a signature.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from privdd.runtime.files import DamagedRun, is_half_written, read_json, write_json
from privdd.runtime.plain_folder import plain_files

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
PAGE = "report.html"
CARD = "card.json"  # the page's twin for other programs
FIGURES = "figures/"
# a sweep's own note; a print of the page; what tells a run's secret, which may be left out of what is given to others
UNSEALED = frozenset({MANIFEST, SIGNATURE, "point.json", "report.pdf", ".lock", "state/secret.json"})
FILES, DRAWN, SEAL = "files", "page", "seal"  # keys of the manifest; the page is redrawn from the files at any time
DRAWN_WITH = "drawn_with"


def sha256(file: Path) -> str:
    """The digest of a file's bytes, in hexadecimal."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def is_page(name: str) -> bool:
    """Whether a file was drawn from the others."""
    return name in (PAGE, CARD) or name.startswith(FIGURES)


def digests(folder: Path) -> dict[str, str]:
    """Name -> sha256 of every file below ``folder`` that a seal covers. Raises DamagedRun for a link."""
    names = sorted(name for name in plain_files(folder) if name not in UNSEALED and not is_half_written(name))
    return {name: sha256(folder / name) for name in names}


def seal(folder: Path) -> None:
    """Write the digests of all files into the manifest, as the last step of a run."""
    found = digests(folder)
    kept = {name: mark for name, mark in found.items() if not is_page(name)}
    drawn = {name: mark for name, mark in found.items() if is_page(name)}
    _write(folder, {**_manifest(folder), FILES: kept, DRAWN: drawn, DRAWN_WITH: library()})


def seal_page(folder: Path) -> None:
    """The same for a page that was drawn anew; a folder that was never sealed stays so."""
    manifest = _manifest(folder)
    if FILES in manifest:
        drawn = {name: sha256(folder / name) for name in sorted(plain_files(folder)) if is_page(name)}
        _write(folder, {**manifest, DRAWN: drawn, DRAWN_WITH: library()})


def library() -> str:
    """What draws a page's figures, with its version: another one draws other bytes."""
    return f"matplotlib {version('matplotlib')}"


def _manifest(folder: Path) -> dict[str, Any]:
    found = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    if not isinstance(found, dict):
        raise DamagedRun(f"{folder / MANIFEST}: an object is needed")
    return found


def _write(folder: Path, manifest: Mapping[str, Any]) -> None:
    write_json(folder / MANIFEST, {**manifest, SEAL: seal_of(manifest)})


def seal_of(manifest: Mapping[str, Any]) -> str:
    """The digest of all of the manifest but the seal itself."""
    return hashlib.sha256(_text({k: v for k, v in manifest.items() if k != SEAL})).hexdigest()


def signed_part(manifest: Mapping[str, Any]) -> bytes:
    """What a signature covers: all of the manifest but what changes when the page is drawn anew."""
    return _text({k: v for k, v in manifest.items() if k not in (SEAL, DRAWN, DRAWN_WITH)})


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

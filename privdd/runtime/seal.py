"""The seal of a run folder, its last write: a run without it was cut off. Quick to import: no
torch.

The manifest lists the sha256 of every file that a run wrote, and its seal covers the list. A seal
shows that nothing changed since it was made, not who made it: whoever edits a file can seal again.
What the numbers say of each other is checked by ``privdd.verification``; who vouches for them, by a
signature. No number depends on date and commit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from privdd.runtime import files
from privdd.runtime.files import DamagedRun
from privdd.runtime.run_files import (
    CARD,
    FIGURES,
    FINDINGS,
    MANIFEST,
    PAGE,
    SIGNATURE,
    TRAINING,
    is_own_file,
)

# what a finished run of a command holds
RESULT_FILES = {
    "audit": (FINDINGS, PAGE),
    "train": (TRAINING,),
}
# that pages are drawn from, beside the evidence
TOP_FILES = frozenset({"config.yaml", FINDINGS, "ledger.json", TRAINING})
# a sweep's own note; a print of the page; what tells a run's secret, which may be left out of what
# is given to others
UNSEALED = frozenset(
    {MANIFEST, SIGNATURE, "point.json", "report.pdf", ".lock", "state/secret.json"}
)
# keys of the manifest; the page is redrawn from the files at any time
FILES_KEY = "files"
PAGE_KEY = "page"
SEAL_KEY = "seal"
PLOTTING_KEY = "drawn_with"


def is_sealed(folder: Path, command: str | None = None) -> bool:
    """Whether a run went to its end: it is sealed, and what its pages are drawn from is as it was
    sealed.

    command: "audit" or "train", whose result has to be there; None: that of either. No link is
        followed."""
    kinds: Collection[tuple[str, ...]]
    if command is None:
        kinds = RESULT_FILES.values()
    else:
        kinds = [RESULT_FILES[command]]
    try:
        if not any(all((folder / name).is_file() for name in names) for names in kinds):
            return False
        return not any(list_changed_sources(folder, files.read_json_object(folder / MANIFEST)))
    except (DamagedRun, OSError):
        return False


def check_was_sealed(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raises DamagedRun, one line, for a run that was never sealed: it did not go to its end."""
    if FILES_KEY not in manifest:
        raise DamagedRun(
            f"{folder}: this run did not end (it was never sealed); resume={folder} goes on with it"
        )


def listed_digests(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Name -> sha256 of all files that the manifest lists. Raises DamagedRun where it lists
    none."""
    listed: dict[str, str] = {}
    for key in (FILES_KEY, PAGE_KEY):
        part = manifest.get(key)
        if not isinstance(part, dict) or not all(isinstance(v, str) for v in part.values()):
            raise DamagedRun(
                f"{MANIFEST}: lists no digests of files (a run that was cut off; resume= "
                "goes on with it)"
            )
        listed |= part
    return listed


def list_changed_sources(
    folder: Path, manifest: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """(file, digest in the manifest, digest now) where they differ: of the seal, and of all that a
    page is drawn from.

    Raises DamagedRun where the manifest lists no digests.
    """
    listed = listed_digests(manifest)
    seal = compute_seal(manifest)
    if manifest.get(SEAL_KEY) != seal:
        yield MANIFEST, str(manifest.get(SEAL_KEY)), seal
    needed = {name for name in listed if name in TOP_FILES or name.startswith("evidence/")}
    present = {name for name in TOP_FILES if (folder / name).is_file()}
    for name in sorted(needed | present):
        if (folder / name).is_file():
            now = file_sha256(folder / name)
        else:
            now = "no such file"
        if listed.get(name) != now:
            yield name, listed.get(name, "nothing"), now


def file_sha256(file: Path) -> str:
    """The digest of a file's bytes, in hexadecimal."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def is_page_file(name: str) -> bool:
    """Whether a file was drawn from the others."""
    return name in (PAGE, CARD) or name.startswith(FIGURES)


def file_digests(folder: Path, listed: Collection[str] = ()) -> dict[str, str]:
    """Name -> sha256 of every file that a run wrote below ``folder`` and a seal covers. Raises
    DamagedRun for a link.

    listed: further names, of files that a manifest lists.
    """
    present = sorted(
        name for name in files.list_plain_files(folder) if is_own_file(name) or name in listed
    )
    return {name: file_sha256(folder / name) for name in present if name not in UNSEALED}


def seal_folder(folder: Path) -> None:
    """Write the digests of all files into the manifest, as the last step of a run."""
    digests = file_digests(folder)
    sources = {name: mark for name, mark in digests.items() if not is_page_file(name)}
    pages = {name: mark for name, mark in digests.items() if is_page_file(name)}
    _write_manifest(folder, {**_read_manifest(folder), FILES_KEY: sources, PAGE_KEY: pages})


def seal_page(folder: Path) -> None:
    """Seal a page that was drawn anew; a folder that was never sealed stays unsealed."""
    manifest = _read_manifest(folder)
    if FILES_KEY in manifest:
        pages = {
            name: file_sha256(folder / name)
            for name in sorted(files.list_plain_files(folder))
            if is_page_file(name)
        }
        _write_manifest(folder, {**manifest, PAGE_KEY: pages})


def plotting_library() -> str:
    """The plotting library with its version: another version draws other bytes."""
    return f"matplotlib {version('matplotlib')}"


def _read_manifest(folder: Path) -> dict[str, Any]:
    return files.read_json_object(folder / MANIFEST, optional=True)


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    manifest = {**manifest, PLOTTING_KEY: plotting_library()}
    files.write_json(folder / MANIFEST, {**manifest, SEAL_KEY: compute_seal(manifest)})


def compute_seal(manifest: Mapping[str, Any]) -> str:
    """The digest of all of the manifest but the seal itself."""
    return hashlib.sha256(
        _canonical_json({k: v for k, v in manifest.items() if k != SEAL_KEY})
    ).hexdigest()


def signed_bytes(manifest: Mapping[str, Any]) -> bytes:
    """The signed part of the manifest: everything but the entries that change when the page is
    drawn anew."""
    return _canonical_json(
        {k: v for k, v in manifest.items() if k not in (SEAL_KEY, PAGE_KEY, PLOTTING_KEY)}
    )


def _canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

"""The files of a folder against the digests in its manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from privdd.runtime.files import DamagedRun
from privdd.runtime.seal import DRAWN, FILES, MANIFEST, SEAL, UNSEALED, digests, is_page, seal_of, sha256
from privdd.verifying.disagreement import Disagreement

READ = ("artifacts/", "evidence/", "state/", "worlds/")  # folders whose files privdd reads by name
AT_THE_TOP = frozenset({"config.yaml", "findings.json", "ledger.json", "training.json"})


def sealed_files(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Name -> sha256 of all files that the manifest lists. Raises DamagedRun where it lists none."""
    found: dict[str, str] = {}
    for key in (FILES, DRAWN):
        part = manifest.get(key)
        if not isinstance(part, dict) or not all(isinstance(v, str) for v in part.values()):
            raise DamagedRun(
                f"{MANIFEST}: lists no digests of files (a run that was cut off, or one of an earlier version)"
            )
        found |= part
    return found


def check_files(folder: Path, manifest: Mapping[str, Any]) -> Iterator[Disagreement]:
    """What is missing, changed, or there without being listed where privdd would read it."""
    listed, found = sealed_files(manifest), digests(folder)
    if manifest.get(SEAL) != seal_of(manifest):
        yield Disagreement(MANIFEST, SEAL, str(manifest.get(SEAL))[:16], seal_of(manifest)[:16])
    for name in sorted({*listed} - UNSEALED):  # earlier versions sealed more
        if name not in found:
            yield Disagreement(name, "sha256", listed[name][:16], "no such file")
        elif listed[name] != found[name]:
            yield Disagreement(name, "sha256", listed[name][:16], found[name][:16])
    for name in sorted({*found} - {*listed}):
        if read_by_name(name):
            yield Disagreement(name, "sha256", "nothing (not listed in manifest.json)", found[name][:16])


def check_drawn_from(folder: Path, manifest: Mapping[str, Any]) -> Iterator[Disagreement]:
    """The same, of the files alone that a page or a comparison is drawn from."""
    listed = sealed_files(manifest)
    needed = {name for name in listed if name in AT_THE_TOP or name.startswith("evidence/")}
    there = {name for name in AT_THE_TOP if (folder / name).is_file()}
    if manifest.get(SEAL) != seal_of(manifest):
        yield Disagreement(MANIFEST, SEAL, str(manifest.get(SEAL))[:16], seal_of(manifest)[:16])
    for name in sorted(needed | there):
        found = sha256(folder / name) if (folder / name).is_file() else "no such file"
        if listed.get(name) != found:
            yield Disagreement(name, "sha256", str(listed.get(name, "nothing"))[:16], found[:16])


def unlisted(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Files that the run did not write and that privdd does not read."""
    return [name for name in digests(folder) if name not in sealed_files(manifest) and not read_by_name(name)]


def read_by_name(name: str) -> bool:
    """Whether privdd reads a file of this name from a run folder, or shows it as the run's page."""
    return name.startswith(READ) or name in AT_THE_TOP or is_page(name)

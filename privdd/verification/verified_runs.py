"""Several runs that agree with themselves, for a comparison: in worker processes where there are many, each only once.

Of a run that was found to agree with itself a note is kept, under the digests of all that was looked at: the files, the
code, and the libraries. Notes lie among the user's own caches, never in a folder that a stranger may have written. Whatever
differs by a bit has no note, and whoever deletes them has every run checked again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import privdd
from privdd.reporting.run_record import RunRecord, read_run_record
from privdd.runtime.engine import Engine
from privdd.runtime.files import DamagedRun, check_plain_folder, read_json, write_bytes
from privdd.runtime.run_folder import MANIFEST, compute_seal, file_sha256
from privdd.runtime.startup import start_forkserver, usable_cores
from privdd.verification.file_checks import TOP_FILES, check_page_sources

LIBRARIES = ("torch", "numpy", "scipy", "dp-accounting", "pydantic", "PyYAML")  # that the numbers were found with
MANY_RUNS = 30  # runs that are to be checked, from which workers save more than their start costs
WORKER_MODULES = ("privdd.verification.run_folder",)


def load_runs(folders: Sequence[Path | str], load: Callable[[Path], RunRecord]) -> list[RunRecord]:
    """The runs, of which ``load`` (``load_run``) has found each to agree with itself. Raises as it does."""
    places = [(place := Path(folder), find_note(place)) for folder in folders]
    found = [_load_noted(folder, note) for folder, note in places]
    fresh = [place for place, known in zip(places, found) if known is None]
    many = len(fresh) >= MANY_RUNS and usable_cores() > 1
    if many:
        start_forkserver(WORKER_MODULES, "cpu")
    checked = Engine("processes" if many else "serial").map(functools.partial(check_and_note, load=load), fresh)
    return [next(checked) if known is None else known for known in found]


def check_and_note(place: tuple[Path, Path | None], load: Callable[[Path], RunRecord]) -> RunRecord:
    """``load`` of a folder, and a note where the run agrees with itself. place: the folder, and its ``find_note`` before."""
    folder, note = place
    record = load(folder)
    if note is not None and note == find_note(folder):  # nothing was changed meanwhile
        with suppress(OSError, ValueError):  # a cache that cannot be written, a config that is no JSON
            config = json.loads(json.dumps(record.config, allow_nan=False))
            write_bytes(
                note, json.dumps(config if config == record.config else None).encode(), private=True, durable=False
            )
    return record


def _load_noted(folder: Path, note: Path | None) -> RunRecord | None:
    """The run, if it was found to agree with itself before and no bit has changed."""
    if note is None or not note.is_file():
        return None
    with suppress(DamagedRun, OSError, ValueError):
        config = json.loads(note.read_bytes())
        return read_run_record(folder, config if isinstance(config, Mapping) else None)
    return None


def find_note(folder: Path) -> Path | None:
    """Where a note on what the folder holds now would be; None for a folder that is not sealed, or differs from its seal."""
    try:
        check_plain_folder(folder)
        manifest = read_json(folder / MANIFEST)
        if any(check_page_sources(folder, manifest)):
            return None
        held = [folder / name for name in TOP_FILES] + [*(folder / "evidence").glob("*")]
        files = {str(file.relative_to(folder)): file_sha256(file) for file in sorted(held) if file.is_file()}
        looked_at = [compute_seal(manifest), files, _code_digest()]
        return _notes_folder() / hashlib.sha256(json.dumps(looked_at).encode()).hexdigest()
    except (DamagedRun, OSError, ValueError, TypeError, AttributeError, RuntimeError):  # whoever checks it will say why
        return None


def _notes_folder() -> Path:
    """Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "privdd" / "verified"


@functools.cache
def _code_digest() -> str:
    """Of the code that checks: every file's name, size and time, and the libraries' versions."""
    package = Path(privdd.__file__).parent
    versions: list[Any] = [version(name) for name in LIBRARIES]
    for place in (package, package.parent / "attacks"):
        files = ((file.relative_to(place.parent), file.stat()) for file in sorted(place.rglob("*.py")))
        versions += [(str(name), state.st_size, state.st_mtime_ns) for name, state in files]
    return hashlib.sha256(json.dumps(versions).encode()).hexdigest()

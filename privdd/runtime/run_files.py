"""The files of a run folder by name: what privdd writes there, what is somebody else's, and who may
begin there.

A run deletes and overwrites only what a run wrote. So a new run begins in an empty folder, and what
a killed process left half written is removed only from a folder that proves to be a run. Files of
the user's own that lie in a finished run stay, are not sealed, and are listed by ``privdd.verify``.
Quick to import: no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from privdd.core.validation import BadConfig
from privdd.runtime.files import (
    LOCK_FILE,
    DamagedRun,
    is_half_written,
    list_plain_files,
    lock_folder,
    printable,
    read_json_object,
)
from privdd.runtime.yaml_files import read_yaml

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
PAGE = "report.html"
CARD = "card.json"  # the page's twin for other programs
FIGURES = "figures/"
CONFIG = "config.yaml"
FINDINGS = "findings.json"
TRAINING = "training.json"
POINT = "point.json"  # a sweep's own note

OWN_NAMES = frozenset(
    {
        CONFIG,
        FINDINGS,
        TRAINING,
        POINT,
        MANIFEST,
        SIGNATURE,
        PAGE,
        CARD,
        LOCK_FILE,
        "ledger.json",
        "report.pdf",
        "source.json",
    }
)
OWN_PATTERN = re.compile(
    r"(artifacts/round_\d+/(client_\d+|sum)\.safetensors"
    r"|evidence/[^/]+\.safetensors"
    r"|worlds/[^/]+/[^/]+\.safetensors"
    r"|state/([^/]+/)?[^/]+\.(json|safetensors)"
    r"|figures/[^/]+\.(svg|png|pdf)"
    r"|tensorboard/events\.out\.tfevents\.[^/]+)"
)
OWN_FOLDERS = ("artifacts/", "evidence/", "worlds/", "state/", "figures/", "tensorboard/")
CONFIG_KEYS = frozenset({"algo", "data", "partition", "privacy"})  # of each config of a run
MANIFEST_KEYS = frozenset({"schema", "version", "seed", "command"})  # of each manifest of a run
TRUST_CODE = "trust_code"  # key of the packages whose classes a stored run may load
SOURCE = "source.json"  # of privdd.reproduce: the commit that trained a row
# what lies in a folder before its run has written anything
BEFORE_A_RUN = frozenset({LOCK_FILE, POINT, SOURCE})


def is_own_file(name: str) -> bool:
    """Whether a run writes a file of this name, with "/" between folders."""
    return name in OWN_NAMES or OWN_PATTERN.fullmatch(name) is not None


def is_run_folder(folder: Path) -> bool:
    """Whether a folder proves to be a run: by the config that a run writes first, else by its
    manifest."""
    try:
        config = read_yaml(folder / CONFIG)
    except (DamagedRun, FileNotFoundError):
        config = None
    if isinstance(config, dict) and config.keys() >= CONFIG_KEYS:
        return True
    try:
        return read_json_object(folder / MANIFEST).keys() >= MANIFEST_KEYS
    except DamagedRun:
        return False


def check_run_folder(folder: Path) -> None:
    """Before anything in it is opened: the folder is new, empty, or a run, and holds plain files
    only.

    Raises DamagedRun for a link in it, and BadConfig, one line that names a file, where it holds
    files and no run."""
    if not folder.is_dir():
        return
    names = list_plain_files(folder)
    for name in names:
        if name in BEFORE_A_RUN or is_half_written(name):
            continue
        if is_run_folder(folder):
            break
        raise BadConfig(
            f"{folder}: holds files of something else ({printable(name)}); a new run "
            "needs a new or an empty folder"
        )
    for _ in names:  # to the end: a link may be anywhere
        pass


@contextmanager
def hold_run_folder(folder: Path) -> Iterator[None]:
    """The lock of a folder that ``check_run_folder`` accepts. Raises as it does, and BadConfig
    where another process has it."""
    check_run_folder(folder)
    with lock_folder(folder):
        yield


def remove_half_written(folder: Path) -> None:
    """Remove what killed processes left half written, from a folder that proves to be a run and
    from nowhere else."""
    if not is_run_folder(folder):
        return
    for name in [*list_plain_files(folder)]:
        is_ours = "/" not in name or name.startswith(OWN_FOLDERS)
        if is_ours and is_half_written(name):
            (folder / name).unlink(missing_ok=True)

"""The data of a stored run, where they are on this machine: are they those that it began with?

Only a digest is made of them; nothing is downloaded, built or trained.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from privdd.cli.build import digest_data
from privdd.cli.stored_config import load_stored_config
from privdd.data.readers import has_idx_files
from privdd.federated.checkpoint import DATA_KEY
from privdd.runtime.files import DamagedRun
from privdd.runtime.run_files import MANIFEST
from privdd.verification.file_checks import Disagreement

OFFLINE = frozenset(
    {"digits", "digit_domains", "breast_cancer"}
)  # sets that every installation has
IDX_SETS = frozenset({"mnist", "fashion_mnist"})


def compare_stored_data(
    folder: Path, manifest: Mapping[str, Any]
) -> tuple[list[Disagreement], str]:
    """(how the data differ from those of the digest in the manifest, why they were not compared or
    "")."""
    stored = manifest.get(DATA_KEY)
    if not isinstance(stored, str) or not stored:
        return [], f"{DATA_KEY}: the manifest holds no digest of them"
    try:
        config = load_stored_config(folder)
        if why := _why_not_here(config):
            return [], f"{DATA_KEY}: {why}"
        digest = digest_data(config)
    except (DamagedRun, ValueError, TypeError, OSError) as error:
        return [], f"{DATA_KEY}: not compared ({' '.join(str(error).split())[:150]})"
    if digest == stored:
        return [], ""
    return [
        Disagreement(MANIFEST, f"{DATA_KEY} (records, labels and split)", stored[:16], digest[:16])
    ], ""


def _why_not_here(config: DictConfig) -> str:
    """Why the data cannot be read without a download, or from what is no file of this user's own;
    "" if they can."""
    name = str(OmegaConf.select(config, "data.name"))
    root = OmegaConf.select(config, "data.root")
    place = None if root is None else Path(str(root)).expanduser()
    if place is None and name in OFFLINE:
        return ""
    if place is not None and not _is_own_place(place):
        return f"{place} is not your file or folder"
    if name in IDX_SETS and has_idx_files(name, place):
        return ""
    if name in ("npz", "table", "location30") and place is not None and place.is_file():
        return ""
    return f"data={name} is not read here"


def _is_own_place(place: Path) -> bool:
    """A plain file or a folder of this user: what a stranger's config names is no pipe, no device
    and nobody else's."""
    try:
        state = place.stat()
    except OSError:
        return False
    is_plain = stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)
    return is_plain and state.st_uid == os.geteuid()

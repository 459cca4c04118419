"""Where data sets are read from: files and folders of the user's own. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privdd.core.validation import DataNotFound

# data sets of the user's own: what data.root has to name, whether that is a file, and what it holds
OWN_DATA = {
    "npz": ("FILE", True, "a .npz file with arrays x and y"),
    "table": ("FILE", True, "a .npz, .csv or .parquet file"),
    "adult": ("DIR", False, "a folder with adult.data and adult.test"),
    "location30": ("FILE", True, "the file bangkok of Location-30"),
    "folder": ("DIR", False, "a folder with one subfolder for each class"),
    "domain_folder": ("DIR", False, "a folder with one subfolder for each domain"),
}


def reads_files(name: str, source: str | None = None) -> bool:
    """Whether the data set ``name`` (of ``corrupted``: the one that it corrupts) is read from
    files, in data.root."""
    return (source if name == "corrupted" else name) not in ("digits", "breast_cancer")


def own_data_place(name: str, root: Any) -> Path:
    """Where data of the user's own lie; name: one of ``OWN_DATA``. Raises DataNotFound if they are
    not named, or not there."""
    shown, is_file, needed = OWN_DATA[name]
    if root is None:
        raise DataNotFound(f"data={name}: data.root={shown} is needed, {needed}")
    place = Path(str(root)).expanduser()
    if not (place.is_file() if is_file else place.is_dir()):
        raise DataNotFound(
            f"data.root={root}: no such {'file' if is_file else 'folder'}; data={name} "
            f"needs {needed}"
        )
    return place

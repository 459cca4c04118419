"""An npz file from someone else: what it declares is checked before any of it is unpacked."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

LARGEST = 4 * 2**30  # bytes of all arrays together


def check_archive(path: str | Path, limit: int = LARGEST) -> None:
    """ValueError for arrays of more than ``limit`` bytes together, for pickled ones, and for a shape without its data.

    A zip of some megabytes can declare terabytes; nothing of that size is unpacked or allocated here.
    """
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            total += member.file_size
            if total > limit:
                raise ValueError(f"more than {limit >> 20} MiB of arrays")
            with archive.open(member) as file:
                shape, dtype = _declared(file)
            if dtype.hasobject:
                raise ValueError(f"{member.filename}: pickled objects")
            if math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(f"{member.filename}: shape {shape} is larger than its data")


def _declared(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """(shape, type) from an npy file's header."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype

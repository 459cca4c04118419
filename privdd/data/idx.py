"""Reader of the idx format (LeCun): four header bytes, big-endian sizes, then the raw array."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

UNSIGNED_BYTES = 0x08


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The uint8 array of a plain or gzipped idx file. Raises ValueError where the file is damaged."""
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, OSError) as error:
        raise ValueError(f"{path}: not readable ({error})") from error
    if len(data) < 4 or data[:2] != b"\x00\x00" or data[2] != UNSIGNED_BYTES:
        raise ValueError(f"{path}: not an idx file of unsigned bytes")
    start = 4 + 4 * data[3]
    shape = tuple(int(side) for side in np.frombuffer(data[4:start], dtype=">u4"))
    if len(shape) != data[3] or len(data) != start + math.prod(shape):
        raise ValueError(f"{path}: damaged, {len(data) - start} bytes of data for shape {shape}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)

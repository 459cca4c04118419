"""``load``: any data set by name."""

from __future__ import annotations

from pathlib import Path

from privdd.core import Keys
from privdd.data.custom import folder, npz
from privdd.data.dataset import Dataset
from privdd.data.digits import digits
from privdd.data.mnist import idx_family
from privdd.data.vision import FAMILIES, vision_family

SOURCES = {
    "digits": digits,
    "mnist": idx_family,
    "fashion_mnist": idx_family,
    **{name: vision_family for name in FAMILIES},
    "npz": npz,
}
NAMES = (*SOURCES, "folder")


def load(
    name: str,
    *,
    root: str | Path | None = None,
    size: int | None = None,
    limit: int | None = None,
    test_limit: int | None = None,
    keys: Keys,
) -> Dataset:
    """The data set ``name`` as images in [0, 1].

    root: folder (or npz file) to look in. size: side in pixels after resizing. limit: at most so many
    training records, test_limit (limit where None) test records, drawn by ``keys``. Raises ValueError
    for an unknown name or bad number and DataNotFound (a ValueError) where the data cannot be had.
    """
    for field, value in (("size", size), ("limit", limit), ("test_limit", test_limit)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not value >= 1):
            raise ValueError(f"data.{field}={value!r}: an integer >= 1 or null is needed")
    place = None if root is None else Path(root).expanduser()
    data = _source(name, place, size, keys.fold("data", name))
    test_limit = limit if test_limit is None else test_limit
    return data.limited(limit, test_limit, keys.fold("data", name, "limit")).resized(size)


def _source(name: str, root: Path | None, size: int | None, keys: Keys) -> Dataset:
    if name == "folder":
        return folder(name, root, keys, size)
    if name not in SOURCES:
        raise ValueError(f"data.name={name!r}: one of {', '.join(NAMES)}")
    return SOURCES[name](name, root, keys)

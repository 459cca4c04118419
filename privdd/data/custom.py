"""A user's own images: an npz of arrays, or a folder with one subfolder for each class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attacks.archive import check_archive
from privdd.core.keys import Keys
from privdd.data.dataset import DataNotFound, Dataset, dataset

TEST_FRACTION = 0.2  # where the source has no test split of its own
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
ARRAYS = ("x", "y", "x_test", "y_test", "domain", "domain_test")
Pair = tuple[Tensor, Tensor]


def npz(name: str, root: Path | None, keys: Keys) -> Dataset:
    """data.root is the file: x (n, h, w), (n, h, w, c) or (n, c, h, w), uint8 or float in [0, 1]; y (n,)
    integers from 0; x_test and y_test where there is a test split (else a fifth is drawn). domain (n,), and
    domain_test with a test split: integers or text that say where each record is from.

    Raises DataNotFound without the file and ValueError where an array does not fit.
    """
    if root is None:
        raise DataNotFound("data=npz: data.root=FILE is needed, a .npz file with arrays x and y")
    if not root.is_file():
        raise DataNotFound(f"data.root={root}: no such file; data=npz needs a .npz file with arrays x and y")
    try:
        check_archive(root)
        with np.load(root, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in ARRAYS if key in stored.files}
    except Exception as error:  # a damaged zip raises EOFError, zlib.error, NotImplementedError and others
        raise ValueError(
            f"data.root={root}: not a .npz file of plain arrays, as numpy.savez writes it "
            f"({' '.join(str(error).split())[:120]})"
        ) from error
    if not {"x", "y"} <= set(arrays):
        raise ValueError(f"data.root={root}: arrays x and y are needed, found {sorted(arrays)}")
    train = _pair(root, arrays["x"], arrays["y"])
    rows = torch.arange(len(train[1])), torch.arange(0)
    if {"x_test", "y_test"} <= set(arrays):
        test = _pair(root, arrays["x_test"], arrays["y_test"])
    else:
        whole, rows = train, _split_rows(len(train[1]), keys)
        train, test = ((whole[0][at], whole[1][at]) for at in rows)
    classes = _classes(root, torch.cat([train[1], test[1]]))
    flat = dataset(name, f"the user's arrays in {root.name}", classes, train, test)
    return with_domains(flat, root, arrays, rows) if "domain" in arrays else flat


def with_domains(flat: Dataset, root: Path, arrays: Mapping[str, NDArray[np.generic]], rows: Pair) -> Dataset:
    """The data set with the domain of each record; rows: of the train and test records where one array held both."""
    split = {"x_test", "y_test"} <= set(arrays)
    none = arrays["domain"][:0]
    given = [arrays["domain"], arrays.get("domain_test", none) if split else none]
    for key, array in zip(("domain", "domain_test"), given):
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            raise ValueError(
                f"data.root={root}: {key} (n,) must hold integers or text, got {array.dtype} {array.shape}"
            )
    names, at = np.unique(np.concatenate([a.astype(str) for a in given]), return_inverse=True)
    found = torch.from_numpy(at.astype(np.int64))
    train, test = found.split([len(a) for a in given]) if split else (found[rows[0]], found[rows[1]])
    if (len(train), len(test)) != (len(flat.train), len(flat.test)):
        raise ValueError(
            f"data.root={root}: domain and domain_test must say where each of {len(flat.train)} training and "
            f"{len(flat.test)} test records is from, got {len(train)} and {len(test)}"
        )
    return replace(flat, domains=tuple(str(name) for name in names), domain=train, test_domain=test)


def folder(name: str, root: Path | None, keys: Keys, size: int | None = None) -> Dataset:
    """data.root holds one subfolder for each class, or train/ and test/ that do; classes in name order.

    All images become size x size (needed where they differ in size); colour if any image is coloured.
    """
    if root is None:
        raise DataNotFound("data=folder: data.root=DIR is needed, a folder with one subfolder for each class")
    if not root.is_dir():
        raise DataNotFound(f"data.root={root}: no such folder; data=folder needs one subfolder for each class in it")
    split = (root / "train").is_dir() and (root / "test").is_dir()
    base = root / "train" if split else root
    names = sorted(p.name for p in base.iterdir() if p.is_dir())
    if not names:
        raise DataNotFound(f"data.root={root}: no class subfolders in {base}")
    listed = [_files(base, names)] + ([_files(root / "test", names)] if split else [])
    grey = all(_is_grey(path) for files in listed for path, _ in files)
    pairs = [_images(root, files, size, grey) for files in listed]
    train, test = (pairs[0], pairs[1]) if split else _split(pairs[0], keys)
    return dataset(name, f"the user's images in {root.name}: {', '.join(names)}", len(names), train, test)


def _pair(root: Path, x: NDArray[np.generic], y: NDArray[np.generic]) -> Pair:
    if x.ndim not in (3, 4) or y.ndim != 1 or len(x) != len(y) or not len(y):
        raise ValueError(f"data.root={root}: x (n, h, w[, c]) and y (n,) are needed, got {x.shape} and {y.shape}")
    if not x.size:
        raise ValueError(f"data.root={root}: images of at least one pixel are needed, got {x.shape}")
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise ValueError(f"data.root={root}: y must hold integers >= 0, got {y.dtype}")
    if x.dtype != np.uint8:
        if not np.issubdtype(x.dtype, np.floating) or not (x.min() >= 0 and x.max() <= 1):  # NaN fails too
            raise ValueError(f"data.root={root}: x must be uint8 or float in [0, 1], got {x.dtype}")
        x = x.astype(np.float32)
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        x = np.moveaxis(x, -1, 1)
    if x.shape[1] not in (1, 3):
        raise ValueError(f"data.root={root}: 1 or 3 channels are needed, got {x.shape}")
    return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64))


def _classes(root: Path, labels: Tensor) -> int:
    """How many classes there are: labels 0, 1, ... without a gap, since a gap would be a class of no record."""
    found = labels.unique()
    gaps = torch.nonzero(found != torch.arange(len(found)))
    if len(gaps):
        missing, label = int(gaps[0]), int(found[int(gaps[0])])
        raise ValueError(
            f"data.root={root}: y must number the classes 0, 1, ... without a gap, got {label} but no {missing}; "
            "np.unique(y, return_inverse=True)[1] numbers them"
        )
    if len(found) < 2:
        raise ValueError(f"data.root={root}: records of at least two classes are needed, y holds one")
    return len(found)


def _split_rows(count: int, keys: Keys) -> Pair:
    """Which records are for training, and which for testing."""
    order = torch.randperm(count, generator=keys.fold("split").torch())
    cut = max(1, round(TEST_FRACTION * count))
    return order[cut:].sort().values, order[:cut].sort().values


def _split(whole: Pair, keys: Keys) -> tuple[Pair, Pair]:
    x, y = whole
    train, test = _split_rows(len(y), keys)
    return (x[train], y[train]), (x[test], y[test])


def _files(base: Path, names: list[str]) -> list[tuple[Path, int]]:
    found = [
        (path, label)
        for label, name in enumerate(names)
        for path in sorted((base / name).glob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise DataNotFound(f"data.root={base}: no images ({', '.join(sorted(SUFFIXES))}) in the class subfolders")
    return found


def _is_grey(path: Path) -> bool:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.mode in ("1", "L", "I", "I;16", "F")
    except OSError as error:
        raise ValueError(f"{path}: not an image that Pillow reads ({error})") from error


def _images(root: Path, files: list[tuple[Path, int]], size: int | None, grey: bool) -> Pair:
    from PIL import Image

    arrays = []
    for path, _ in files:
        with Image.open(path) as image:
            picture = image.convert("L" if grey else "RGB")
            if size is not None:
                picture = picture.resize((size, size), Image.Resampling.BILINEAR)
            arrays.append(np.asarray(picture, dtype=np.uint8))
    if len({a.shape for a in arrays}) > 1:
        raise ValueError(f"data.root={root}: the images differ in size; set data.size to bring them to one")
    stack = np.stack(arrays)
    stack = stack[:, None] if grey else np.moveaxis(stack, -1, 1)
    return torch.from_numpy(np.ascontiguousarray(stack)), torch.tensor([label for _, label in files])

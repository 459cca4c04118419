"""Data sets that torchvision reads and downloads: CIFAR-10, CIFAR-100, SVHN, USPS, EMNIST."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privdd.core.keys import Keys
from privdd.data.dataset import DataNotFound, Dataset, dataset
from privdd.data.download import data_folder, fetched

# name: class in torchvision.datasets, arguments of train and test, classes, note
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any], int, str]] = {
    "cifar10": ("CIFAR10", {"train": True}, {"train": False}, 10, "CIFAR-10: 50000 + 10000 photos, 32x32 colour"),
    "cifar100": ("CIFAR100", {"train": True}, {"train": False}, 100, "CIFAR-100: 50000 + 10000 photos, 32x32 colour"),
    "svhn": ("SVHN", {"split": "train"}, {"split": "test"}, 10, "SVHN: 73257 + 26032 house numbers, 32x32 colour"),
    "usps": ("USPS", {"train": True}, {"train": False}, 10, "USPS: 7291 + 2007 handwritten digits, 16x16 grey"),
    "emnist": (
        "EMNIST",
        {"split": "balanced", "train": True},
        {"split": "balanced", "train": False},
        47,
        "EMNIST balanced: 112800 + 18800 letters and digits, 28x28 grey",
    ),
}


def vision_family(name: str, root: Path | None, keys: Keys, download: bool = True) -> Dataset:
    """Raises DataNotFound with the folder searched and the reason why the download failed."""
    cls, train, test, classes, note = FAMILIES[name]
    folder = root or data_folder()
    try:
        parts = [_arrays(name, fetched(cls, folder, download, **arguments)) for arguments in (train, test)]
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataNotFound(
            f"data.name={name!r}: not in {folder}, and torchvision's download failed ({reason}). "
            f"Set data.root to the folder that holds torchvision's files"
        ) from error
    return dataset(name, note, classes, parts[0], parts[1])


def _arrays(name: str, source: Any) -> tuple[Tensor, Tensor]:
    x = torch.as_tensor(np.asarray(source.data))
    y = torch.as_tensor(np.asarray(source.labels if name == "svhn" else source.targets)).long()
    if name == "emnist":
        x = x.transpose(1, 2)  # the files hold the images mirrored at the diagonal
    if x.ndim == 3:
        return x.unsqueeze(1), y
    return (x if name == "svhn" else x.permute(0, 3, 1, 2)), y

"""Labelled records of any shape, from an npz file or from arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attacks.archive import check_archive
from privdd.core.errors import BadConfig

LEAST = 20  # records of either kind: with fewer, no rate can be told from guessing


@dataclass(frozen=True)
class Labelled:
    """x (n, ...) and labels y (n,) int64 from 0; pictures that were bytes lie in [0, 1] now. kind: "numpy" or "torch"."""

    x: Tensor
    y: Tensor
    kind: str = "numpy"

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record."""
        return tuple(self.x.shape[1:])

    @property
    def pictures(self) -> bool:
        """Whether a record is (c, h, w) with 1 or 3 channels and values in [0, 1]."""
        whole = self.x.ndim == 4 and self.x.shape[1] in (1, 3) and self.x.is_floating_point()
        return whole and bool(self.x.min() >= 0) and bool(self.x.max() <= 1)

    def at(self, rows: Tensor) -> Labelled:
        return Labelled(self.x[rows], self.y[rows], self.kind)

    def given(self) -> tuple[Any, Any]:
        """(x, y) as the kind of array that was brought."""
        return (self.x, self.y) if self.kind == "torch" else (self.x.numpy(), self.y.numpy())


def read(key: str, path: Path, *, least: int = LEAST, labels: bool = True) -> Labelled:
    """An npz with x (n, ...) and y (n,). Raises BadConfig, naming ``key`` and file, in one line.

    labels: whether y has to be there; without it every label is 0.
    """
    where = f"{key}={path}"
    if not path.is_file():
        raise BadConfig(f"{where}: no such file")
    if path.suffix.lower() in (".pkl", ".pickle", ".joblib", ".csv"):
        raise BadConfig(f"{where}: an .npz with arrays x and y is needed (np.savez('{path.stem}.npz', x=x, y=y))")
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in ("x", "y") if name in stored.files}
            found = sorted(stored.files)
    except Exception as error:  # a damaged zip raises EOFError, zlib.error, NotImplementedError and others
        why = " ".join(str(error).split())[:120]
        raise BadConfig(f"{where}: not an .npz of plain arrays ({why})") from error
    if not {"x", *["y"] * labels} <= set(arrays):
        raise BadConfig(
            f"{where}: {'arrays x and y are' if labels else 'an array x is'} needed, "
            f"found {', '.join(found)[:200] or 'none'}"
        )
    return labelled(where, arrays["x"], arrays.get("y"), least=least)


def labelled(key: str, x: Any, y: Any = None, *, least: int = LEAST) -> Labelled:
    """Checked arrays or tensors. Raises BadConfig, naming ``key``, for another shape, labels that are no whole numbers
    from 0, and values that are not finite."""
    kind = "torch" if isinstance(x, Tensor) else "numpy"
    values = _array(x)
    labels = np.zeros(len(values) if values.ndim else 0, np.int64) if y is None else _array(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if values.ndim < 2 or labels.ndim != 1 or len(values) != len(labels):
        raise BadConfig(f"{key}: x (n, ...) and y (n,) are needed, got {values.shape} and {labels.shape}")
    if len(values) < least:
        raise BadConfig(f"{key}: {len(values)} records; at least {least} are needed")
    if values.dtype.kind not in "biuf" or not values[0].size or not np.isfinite(values).all():
        raise BadConfig(f"{key}: x must hold finite numbers, got {values.dtype} {values.shape}")
    if labels.dtype.kind not in "biuf" or not (labels == np.floor(labels)).all() or labels.min() < 0:
        raise BadConfig(f"{key}: y must hold whole numbers from 0, got {labels.dtype} with {labels.min()}")
    return Labelled(_scaled(values), torch.from_numpy(labels.astype(np.int64)), kind)


def _array(values: Any) -> NDArray[Any]:
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    return np.asarray(values)


def _scaled(values: NDArray[Any]) -> Tensor:
    """Bytes of pictures as fractions, other whole numbers and reals as they are."""
    if values.dtype == np.uint8 and values.ndim > 2:
        return torch.from_numpy(values.astype(np.float32) / 255)
    if values.dtype.kind in "bu":
        values = values.astype(np.int64)
    if values.dtype.itemsize > 8 or not values.dtype.isnative:  # torch has neither long doubles nor foreign byte orders
        values = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    return torch.from_numpy(np.ascontiguousarray(values))


def check_alike(first: str, one: Labelled, second: str, other: Labelled) -> None:
    """Raises BadConfig where records of two sets differ in shape."""
    if one.shape != other.shape:
        raise BadConfig(f"{second}: records of shape {other.shape}, those of {first} have {one.shape}")

"""Labelled records of any shape, from an npz file or from arrays, tables and sparse matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from attacks.archive import check_archive
from privdd.core.errors import BadConfig

LEAST = 20  # records of either kind: with fewer, no rate can be told from guessing
LARGEST_LABEL = 100_000  # labels from 0 up to here number outputs; others are names of classes
LARGEST_DENSE = 2**28  # numbers of a sparse matrix that are written out: 2 GiB


@dataclass(frozen=True)
class RecordColumn:
    """Of a table. values: what codes 0, 1, ... stand for, in a column of text or kinds; None in one of numbers."""

    name: Any
    dtype: Any
    values: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Form:
    """How records were brought, so that a model is asked in the same way."""

    kind: Literal["numpy", "torch", "sparse", "table"] = "numpy"
    columns: tuple[RecordColumn, ...] = ()

    @property
    def coded(self) -> bool:
        """Whether some numbers are codes or whole numbers, so that a value between two of them is none."""
        return any(column.values is not None or column.dtype.kind != "f" for column in self.columns)

    @property
    def text(self) -> bool:
        return any(column.values is not None for column in self.columns)

    def rows(self, x: Tensor) -> Any:
        """The records x (n, ...) as they were brought."""
        if self.kind == "torch":
            return x
        if self.kind == "sparse":
            return sparse.csr_matrix(x.numpy())
        if self.kind == "table":
            return _table(x.double().numpy(), self.columns)
        return x.numpy()


@dataclass(frozen=True)
class Labelled:
    """x (n, ...) and y (n,) int64; pictures that were bytes lie in [0, 1] now.

    y: the labels, whole numbers from 0; with names (c,), places in ``names``, which holds the labels as they were brought.
    """

    x: Tensor
    y: Tensor
    form: Form = Form()
    names: NDArray[Any] | None = None

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

    @property
    def gaps(self) -> bool:
        """Whether some values are missing (NaN)."""
        return self.x.is_floating_point() and bool(self.x.isnan().any())

    def at(self, rows: Tensor) -> Labelled:
        return replace(self, x=self.x[rows], y=self.y[rows])

    def labels(self) -> NDArray[Any]:
        """(n,): as they were brought."""
        own = self.y.numpy()
        return own if self.names is None else self.names[own]

    def given(self) -> tuple[Any, Any]:
        """(x, y) as the kind of array that was brought."""
        labels = self.labels()
        numbers = self.form.kind == "torch" and labels.dtype.kind == "i"
        return self.form.rows(self.x), torch.from_numpy(labels) if numbers else labels

    def numbered(self, names: NDArray[Any], key: str) -> Labelled:
        """The same with labels as places in ``names``, the classes of a model. Raises BadConfig for a label that is none."""
        place = {name: at for at, name in enumerate(names.tolist())}
        known, back = np.unique(self.labels(), return_inverse=True)
        unknown = [name for name in known.tolist() if name not in place]
        if unknown:
            raise BadConfig(f"{key}: y holds {_few(unknown)}, the model's classes are {_few(names.tolist())}")
        at = np.array([place[name] for name in known.tolist()], np.int64)[back]
        return replace(
            self, y=torch.from_numpy(at), names=None if np.array_equal(names, np.arange(len(names))) else names
        )


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
    """Checked records and labels: arrays, tensors, tables of pandas, sparse matrices.

    Raises BadConfig, naming ``key``, for another shape, values that are no numbers or infinite, and labels that name no
    class. Missing values (NaN) come through: whether the model takes them is for it to say.
    """
    values, form = _values(key, x)
    labels = np.zeros(len(values) if values.ndim else 0, np.int64) if y is None else _array(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if values.ndim < 2 or labels.ndim != 1 or len(values) != len(labels):
        raise BadConfig(f"{key}: x (n, ...) and y (n,) are needed, got {values.shape} and {labels.shape}{_hot(labels)}")
    if len(values) < least:
        raise BadConfig(f"{key}: {len(values)} records; at least {least} are needed")
    if values.dtype.kind not in "biuf" or not values[0].size:
        raise BadConfig(f"{key}: x must hold numbers, got {values.dtype} {values.shape}; text needs a table of pandas")
    if values.dtype.kind == "f" and np.isinf(values).any():
        raise BadConfig(
            f"{key}: x must hold finite numbers or NaN for missing ones; {_first(np.isinf(values))} is infinite"
        )
    whole, names = _labels(key, labels)
    return Labelled(_scaled(values), torch.from_numpy(whole), form, names)


def check_numbered(key: str, one: Labelled) -> None:
    """Raises BadConfig for labels that are no whole numbers from 0, and for missing values: what a network reads alone."""
    if one.names is not None:
        raise BadConfig(
            f"{key}: y holds {_few(one.names.tolist())}; whole numbers from 0 in the order of the model's outputs are needed"
        )
    check_complete(key, one)


def check_complete(key: str, one: Labelled) -> None:
    """Raises BadConfig where values are missing, which distances and gradients do not allow for."""
    if one.gaps:
        raise BadConfig(f"{key}: x must hold finite numbers; {_first(one.x.isnan().numpy())} is NaN")


def alike(sets: Mapping[str, Labelled]) -> list[Labelled]:
    """Sets by what messages call them, with text of tables coded in one way. Raises BadConfig where their records differ."""
    (first, one), *others = sets.items()
    made = [one]
    for key, other in others:
        check_alike(first, one, key, other)
        made.append(_coded_as(first, made[-1].form.columns, key, other))
    return [replace(each, form=replace(each.form, columns=made[-1].form.columns)) for each in made]


def _coded_as(first: str, mine: Sequence[RecordColumn], key: str, other: Labelled) -> Labelled:
    """The set with its columns coded as ``mine``; values that these do not have come after them."""
    theirs = other.form.columns
    names = [[column.name for column in columns] for columns in (mine, theirs)]
    if names[0] != names[1]:
        raise BadConfig(
            f"{key}: columns {_few(names[1]) or 'without names'}; those of {first} are {_few(names[0]) or 'without names'}"
        )
    x, made = other.x.clone(), []
    for at, (left, right) in enumerate(zip(mine, theirs)):
        if (left.values is None) != (right.values is None):
            raise BadConfig(f"{key}: column {left.name} holds {right.dtype}; that of {first} holds {left.dtype}")
        values = None
        if left.values is not None and right.values is not None:
            values = tuple(dict.fromkeys((*left.values, *right.values)))
            codes = torch.tensor([*(values.index(value) for value in right.values), math.nan], dtype=torch.float64)
            x[:, at] = codes[torch.where(x[:, at].isnan(), len(right.values), x[:, at]).long()]
        made.append(replace(left, values=values))
    return replace(other, x=x, form=replace(other.form, columns=tuple(made)))


def check_alike(first: str, one: Labelled, second: str, other: Labelled) -> None:
    """Raises BadConfig where records of two sets differ in shape."""
    if one.shape != other.shape:
        raise BadConfig(f"{second}: records of shape {other.shape}, those of {first} have {one.shape}")


def complete(*sets: Tensor) -> list[Tensor]:
    """Sets of records (n, ...) as (n, d) float64 without gaps: NaN becomes the column's mean over all of them, and each
    column with gaps is followed by one that says where they are."""
    whole = [x.flatten(1).double() for x in sets]
    every = torch.cat(whole)
    holes = every.isnan()
    if not holes.any():
        return whole
    some = holes.any(0)
    mean = torch.nan_to_num(every.nanmean(0))
    return [torch.cat([torch.where(x.isnan(), mean, x), x.isnan()[:, some].double()], 1) for x in whole]


def _values(key: str, x: Any) -> tuple[NDArray[Any], Form]:
    """The numbers, and how they were brought."""
    if sparse.issparse(x):
        if np.prod(x.shape, dtype=float) > LARGEST_DENSE:
            raise BadConfig(f"{key}: a sparse matrix of {x.shape} is too large to be written out; give fewer columns")
        return np.asarray(x.toarray()), Form("sparse")
    if hasattr(x, "columns") and hasattr(x, "iloc"):
        return _of_table(key, x)
    values = _array(x)
    if values.dtype.kind == "O" and values.ndim > 1:
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            raise BadConfig(
                f"{key}: x holds {type(values.flat[0]).__name__} and other objects; give numbers, or a table of pandas"
            ) from None
    return values, Form("torch" if isinstance(x, Tensor) else "numpy")


def _of_table(key: str, table: Any) -> tuple[NDArray[Any], Form]:
    from pandas import CategoricalDtype, factorize
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    columns, parts = [], []
    for at, name in enumerate(table.columns):
        series = table.iloc[:, at]
        if is_numeric_dtype(series.dtype) or is_bool_dtype(series.dtype):
            columns.append(RecordColumn(name, series.dtype))
            parts.append(series.to_numpy(dtype=np.float64, na_value=np.nan))
            continue
        if series.dtype.kind not in "OUT" and not isinstance(series.dtype, CategoricalDtype):
            raise BadConfig(f"{key}: column {name} holds {series.dtype}; numbers, text or kinds are read")
        codes, values = factorize(series.astype(object))
        columns.append(RecordColumn(name, series.dtype, tuple(values)))
        parts.append(np.where(codes < 0, np.nan, codes.astype(np.float64)))
    return np.stack(parts, 1) if parts else np.zeros((len(table), 0)), Form("table", tuple(columns))


def _table(x: NDArray[Any], columns: Sequence[RecordColumn]) -> Any:
    from pandas import CategoricalDtype, DataFrame, Series

    made = []
    for own, column in zip(x.T, columns):
        if column.values is None:
            made.append(Series(own).astype(column.dtype))
            continue
        at = np.where(np.isnan(own), len(column.values), own).astype(int)
        series = Series(np.array([*column.values, None], dtype=object)[at])
        kind = CategoricalDtype(column.values) if isinstance(column.dtype, CategoricalDtype) else column.dtype
        if isinstance(column.dtype, CategoricalDtype) and set(column.dtype.categories) >= set(column.values):
            kind = column.dtype
        made.append(series.astype(kind))
    table = DataFrame({at: series for at, series in enumerate(made)})
    table.columns = [column.name for column in columns]  # type: ignore[assignment]
    return table


def _array(values: Any) -> NDArray[Any]:
    if isinstance(values, Tensor):
        plain = values.detach().cpu()
        small = plain.is_floating_point() and plain.dtype not in (torch.float16, torch.float32, torch.float64)
        return (plain.float() if small else plain).numpy()
    return np.asarray(values)


def _labels(key: str, labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any] | None]:
    """(whole numbers from 0, None), or places in the sorted labels and these."""
    if labels.dtype.kind == "O":
        if any(one is None or one != one for one in labels.tolist()):
            raise BadConfig(f"{key}: y must hold a label for each record; some are missing")
        kinds = {type(one) for one in labels.tolist()}
        labels = labels.astype(str) if kinds <= {str, np.str_} else np.array(labels.tolist())
    if labels.dtype.kind in "US":
        names, back = np.unique(labels.astype(str), return_inverse=True)
        return back.astype(np.int64), names
    if labels.dtype.kind not in "biuf" or not np.isfinite(labels).all() or not (labels == np.floor(labels)).all():
        raise BadConfig(f"{key}: y must hold whole numbers or text, one class for each record, got {_sample(labels)}")
    if np.abs(labels.astype(np.float64)).max() > 2**53:
        raise BadConfig(
            f"{key}: y must number or name classes, got labels up to {np.abs(labels.astype(np.float64)).max():.3g}"
        )
    whole = labels.astype(np.int64)
    if whole.min() >= 0 and whole.max() <= LARGEST_LABEL:
        return whole, None
    names, back = np.unique(whole, return_inverse=True)
    return back.astype(np.int64), names


def _scaled(values: NDArray[Any]) -> Tensor:
    """Bytes of pictures as fractions, other whole numbers and reals as they are."""
    if values.dtype == np.uint8 and values.ndim > 2:
        return torch.from_numpy(values.astype(np.float32) / 255)
    if values.dtype.kind in "bu":
        values = values.astype(np.int64)
    if values.dtype.itemsize > 8 or not values.dtype.isnative:  # torch has neither long doubles nor foreign byte orders
        values = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    return torch.from_numpy(np.ascontiguousarray(values))


def _hot(labels: NDArray[Any]) -> str:
    """What to do with labels that have a column for each class."""
    if labels.ndim != 2 or labels.dtype.kind not in "biuf":
        return ""
    hot = ((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all()
    return "; give y.argmax(1)" if hot else "; a record has one class here"


def _sample(labels: NDArray[Any]) -> str:
    """The type, and the first label that is no class."""
    if labels.dtype.kind != "f":
        return f"{labels.dtype}"
    return f"{labels.dtype} with {labels[~np.isfinite(labels) | (labels != np.floor(labels))][0]:g}"


def _first(wrong: NDArray[Any]) -> str:
    """Where the first value lies that is wrong."""
    return f"a value of record {int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))} (from 0)"


def _few(names: Sequence[Any]) -> str:
    shown = ", ".join(repr(name) if isinstance(name, str) else f"{name}" for name in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown

"""Labelled records of any shape, from an npz file or from arrays, tables and sparse matrices; and
distances between them."""

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

from attacks.validation import check_archive
from privdd.core.validation import BadConfig

KERAS_NAMES = {"x_train": "x", "y_train": "y"}  # read where an npz has neither x nor y
MIN_RECORDS = 20  # records of either kind: with fewer, no rate can be told from guessing
SECONDS_PER_DAY = 86_400
NANOSECONDS_PER_DAY = SECONDS_PER_DAY * 10**9
MAX_LABEL = 100_000  # labels from 0 up to here number outputs; others are names of classes
MAX_DENSE_NUMBERS = 2**28  # numbers of a sparse matrix that are written out: 2 GiB


@dataclass(frozen=True)
class RecordColumn:
    """A column of a table. values: what codes 0, 1, ... stand for, in a column of text or kinds;
    None in one of numbers."""

    name: Any
    dtype: Any
    values: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class RecordFormat:
    """How records were brought, so that a model is asked in the same way."""

    kind: Literal["numpy", "torch", "sparse", "table"] = "numpy"
    columns: tuple[RecordColumn, ...] = ()

    @property
    def has_codes(self) -> bool:
        """Whether some numbers are codes or whole numbers, so that a value between two of them is
        none."""
        return any(column.values is not None or column.dtype.kind != "f" for column in self.columns)

    @property
    def has_text(self) -> bool:
        return any(column.values is not None for column in self.columns)

    def original_rows(self, x: Tensor) -> Any:
        """The records x (n, ...) as they were brought."""
        if self.kind == "torch":
            return x
        if self.kind == "sparse":
            return sparse.csr_matrix(x.numpy())
        if self.kind == "table":
            return _decode_table(x.double().numpy(), self.columns)
        return x.numpy()


@dataclass(frozen=True)
class LabelledRecords:
    """x (n, ...), pictures that were bytes now in [0, 1]; y (n,) int64, whole numbers from 0, or
    with ``names`` (c,) places in these labels."""

    x: Tensor
    y: Tensor
    form: RecordFormat = RecordFormat()
    names: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return tuple(self.x.shape[1:])

    @property
    def has_pictures(self) -> bool:
        """Whether a record is (c, h, w) with 1 or 3 channels and values in [0, 1]."""
        has_image_shape = (
            self.x.ndim == 4 and self.x.shape[1] in (1, 3) and self.x.is_floating_point()
        )
        return has_image_shape and bool(self.x.min() >= 0) and bool(self.x.max() <= 1)

    @property
    def has_gaps(self) -> bool:
        """Whether some values are missing (NaN)."""
        return self.x.is_floating_point() and bool(self.x.isnan().any())

    def select_rows(self, rows: Tensor) -> LabelledRecords:
        return replace(self, x=self.x[rows], y=self.y[rows])

    def original_labels(self) -> NDArray[Any]:
        """(n,): as they were brought."""
        labels = self.y.numpy()
        return labels if self.names is None else self.names[labels]

    def original_arrays(self) -> tuple[Any, Any]:
        """(x, y) as the kind of array that was brought."""
        labels = self.original_labels()
        numbers = self.form.kind == "torch" and labels.dtype.kind == "i"
        return self.form.original_rows(self.x), torch.from_numpy(labels) if numbers else labels

    def number_labels(self, names: NDArray[Any], key: str) -> LabelledRecords:
        """The records with labels as positions in ``names``, the classes of a model. Raises
        BadConfig for a label that is none."""
        place = {name: positions for positions, name in enumerate(names.tolist())}
        distinct, back = np.unique(self.original_labels(), return_inverse=True)
        unknown = [name for name in distinct.tolist() if name not in place]
        if unknown:
            raise BadConfig(
                f"{key}: y holds {_list_few(unknown)}, the model's classes are "
                f"{_list_few(names.tolist())}"
            )
        positions = np.array([place[name] for name in distinct.tolist()], np.int64)[back]
        plain = np.array_equal(names, np.arange(len(names)))
        return replace(self, y=torch.from_numpy(positions), names=None if plain else names)


def read_records(
    key: str, path: Path, *, least: int = MIN_RECORDS, labels: bool = True
) -> LabelledRecords:
    """An npz with x (n, ...) and y (n,), which may be missing (every label 0) without ``labels``.
    Raises BadConfig, naming ``key`` and file."""
    where = f"{key}={path}"
    if not path.is_file():
        raise BadConfig(f"{where}: no such file")
    if path.suffix.lower() in (".pkl", ".pickle", ".joblib", ".csv"):
        raise BadConfig(
            f"{where}: an .npz with arrays x and y is needed (np.savez('{path.stem}.npz', "
            "x=x, y=y))"
        )
    arrays, present = read_archive(where, path, ("x", "y", *KERAS_NAMES))
    if not {"x", "y"} & set(arrays):  # arrays as Keras names them
        arrays = {KERAS_NAMES[name]: value for name, value in arrays.items()}
    if not {"x", *["y"] * labels} <= set(arrays):
        needed = "arrays x and y are" if labels else "an array x is"
        raise BadConfig(f"{where}: {needed} needed, found {', '.join(present)[:200] or 'none'}")
    return records_from_arrays(where, arrays["x"], arrays.get("y"), least=least)


def read_archive(
    where: str, path: Path, only: Sequence[str] = ()
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Arrays of an npz, all or those of ``only``, and the names of all. Raises BadConfig, beginning
    with ``where``."""
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as stored:
            return {
                name: stored[name] for name in stored.files if name in (only or stored.files)
            }, sorted(stored.files)
    except (
        Exception
    ) as error:  # a damaged zip raises EOFError, zlib.error, NotImplementedError and others
        raise BadConfig(
            f"{where}: not an .npz of plain arrays ({' '.join(str(error).split())[:120]})"
        ) from error


def records_from_arrays(
    key: str, x: Any, y: Any = None, *, least: int = MIN_RECORDS
) -> LabelledRecords:
    """Checked records and labels of arrays, tensors, tables of pandas, sparse matrices; NaN comes
    through, and a column of dates is one of days since 1970. Raises BadConfig, naming ``key``, for
    other shapes, values that are no numbers or infinite, and labels that name no class."""
    values, form = _values_and_format(key, x)
    labels: np.ndarray
    if y is None:
        labels = np.zeros(len(values) if values.ndim else 0, np.int64)
    else:
        labels = _as_array(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if values.ndim < 2 or labels.ndim != 1 or len(values) != len(labels):
        shapes = f"got {values.shape} and {labels.shape}{_one_hot_hint(labels)}"
        raise BadConfig(f"{key}: x (n, ...) and y (n,) are needed, {shapes}")
    if len(values) < least:
        raise BadConfig(f"{key}: {len(values)} records; at least {least} are needed")
    if values.dtype.kind not in "biuf" or not values[0].size:
        raise BadConfig(
            f"{key}: x must hold numbers, got {values.dtype} {values.shape}; text needs a "
            "table of pandas"
        )
    if values.dtype.kind == "f" and np.isinf(values).any():
        where = _locate_first(np.isinf(values))
        raise BadConfig(
            f"{key}: x must hold finite numbers or NaN for missing ones; {where} is infinite"
        )
    numbered, names = number_labels(key, labels)
    return LabelledRecords(_scale_bytes(values), torch.from_numpy(numbered), form, names)


def check_network_records(train: LabelledRecords, heldout: LabelledRecords) -> None:
    """Raises BadConfig for sets of different shapes, labels that are no whole numbers from 0, and
    missing values."""
    check_same_shape("target.train", train, "target.heldout", heldout)
    for key, records in (("target.train", train), ("target.heldout", heldout)):
        if records.names is not None:
            needed = "whole numbers from 0 in the order of the model's outputs are needed"
            raise BadConfig(f"{key}: y holds {_list_few(records.names.tolist())}; {needed}")
        check_no_gaps(key, records)


def check_no_gaps(key: str, records: LabelledRecords) -> None:
    """Raises BadConfig where values are missing, which distances and gradients do not allow for."""
    if records.has_gaps:
        raise BadConfig(
            f"{key}: x must hold finite numbers; {_locate_first(records.x.isnan().numpy())} is NaN"
        )


def align_columns(sets: Mapping[str, LabelledRecords]) -> list[LabelledRecords]:
    """Sets by what messages call them, with text of tables coded in one way. Raises BadConfig where
    their records differ."""
    (first, first_records), *remaining = sets.items()
    aligned = [first_records]
    for key, records in remaining:
        check_same_shape(first, first_records, key, records)
        aligned.append(_recode_columns(first, aligned[-1].form.columns, key, records))
    return [
        replace(each, form=replace(each.form, columns=aligned[-1].form.columns)) for each in aligned
    ]


def _recode_columns(
    first: str, mine: Sequence[RecordColumn], key: str, other: LabelledRecords
) -> LabelledRecords:
    """The set with its columns coded as ``mine``; values that these do not have come after them."""
    theirs = other.form.columns
    names = [[column.name for column in columns] for columns in (mine, theirs)]
    if names[0] != names[1]:
        ours, their_names = (_list_few(name) or "without names" for name in names)
        raise BadConfig(f"{key}: columns {their_names}; those of {first} are {ours}")
    x = other.x.clone()
    recoded = []
    for index, (my_column, right) in enumerate(zip(mine, theirs)):
        if (my_column.values is None) != (right.values is None):
            raise BadConfig(
                f"{key}: column {my_column.name} holds {right.dtype}; that of {first} "
                f"holds {my_column.dtype}"
            )
        values = None
        if my_column.values is not None and right.values is not None:
            values = tuple(dict.fromkeys((*my_column.values, *right.values)))
            codes = torch.tensor(
                [*(values.index(value) for value in right.values), math.nan], dtype=torch.float64
            )
            x[:, index] = codes[
                torch.where(x[:, index].isnan(), len(right.values), x[:, index]).long()
            ]
        recoded.append(replace(my_column, values=values))
    return replace(other, x=x, form=replace(other.form, columns=tuple(recoded)))


def check_same_shape(first: str, one: LabelledRecords, second: str, other: LabelledRecords) -> None:
    """Raises BadConfig where records of two sets differ in shape."""
    if one.record_shape != other.record_shape:
        raise BadConfig(
            f"{second}: records of shape {other.record_shape}, those of {first} have "
            f"{one.record_shape}"
        )


def fill_gaps(*sets: Tensor) -> list[Tensor]:
    """Sets (n, ...) as (n, d) float64: NaN becomes the column's mean over all, and each column with
    gaps is followed by one that shows them."""
    flat_sets = [x.flatten(1).double() for x in sets]
    every = torch.cat(flat_sets)
    holes = every.isnan()
    if not holes.any():
        return flat_sets
    has_holes = holes.any(0)
    mean = torch.nan_to_num(every.nanmean(0))
    return [
        torch.cat([torch.where(x.isnan(), mean, x), x.isnan()[:, has_holes].double()], 1)
        for x in flat_sets
    ]


def _values_and_format(key: str, x: Any) -> tuple[NDArray[Any], RecordFormat]:
    """The numbers as an array, and the form in which the caller gave them."""
    if sparse.issparse(x):
        if np.prod(x.shape, dtype=float) > MAX_DENSE_NUMBERS:
            raise BadConfig(
                f"{key}: a sparse matrix of {x.shape} is too large to be written out; "
                "give fewer columns"
            )
        return np.asarray(x.toarray()), RecordFormat("sparse")
    if hasattr(x, "columns") and hasattr(x, "iloc"):
        return _encode_table(key, x)
    values = _as_array(x)
    if values.dtype.kind == "O" and values.ndim > 1:
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            kind = type(values.flat[0]).__name__
            raise BadConfig(
                f"{key}: x holds {kind} and other objects; give numbers, or a table of pandas"
            ) from None
    return values, RecordFormat("torch" if isinstance(x, Tensor) else "numpy")


def _encode_table(key: str, table: Any) -> tuple[NDArray[Any], RecordFormat]:
    from pandas import CategoricalDtype, factorize
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    columns = []
    parts = []
    for index, name in enumerate(table.columns):
        series = table.iloc[:, index]
        if is_numeric_dtype(series.dtype) or is_bool_dtype(series.dtype):
            columns.append(RecordColumn(name, series.dtype))
            parts.append(series.to_numpy(dtype=np.float64, na_value=np.nan))
            continue
        if series.dtype.kind == "M":
            columns.append(RecordColumn(name, series.dtype))
            parts.append(_dates_to_days(series))
            continue
        if series.dtype.kind not in "OUT" and not isinstance(series.dtype, CategoricalDtype):
            raise BadConfig(
                f"{key}: column {name} holds {series.dtype}; numbers, dates, text or kinds are read"
            )
        codes, values = factorize(series.astype(object))
        columns.append(RecordColumn(name, series.dtype, tuple(values)))
        parts.append(np.where(codes < 0, np.nan, codes.astype(np.float64)))
    return np.stack(parts, 1) if parts else np.zeros((len(table), 0)), RecordFormat(
        "table", tuple(columns)
    )


def _dates_to_days(series: Any) -> NDArray[np.float64]:
    """Days since 1970 (UTC where there is a time zone), NaN for a missing date."""
    if series.dt.tz is None:
        plain = series
    else:
        plain = series.dt.tz_convert("UTC").dt.tz_localize(None)
    values = plain.to_numpy(dtype="datetime64[ns]")
    days = values.astype(np.int64) / NANOSECONDS_PER_DAY
    return np.where(np.isnat(values), np.nan, days)


def _days_to_dates(days: NDArray[Any], dtype: Any) -> Any:
    from pandas import Series, to_datetime

    rounded = Series(to_datetime(Series(days * SECONDS_PER_DAY).round(3), unit="s"))
    zone = getattr(dtype, "tz", None)
    return (rounded if zone is None else rounded.dt.tz_localize("UTC").dt.tz_convert(zone)).astype(
        dtype
    )


def _decode_table(x: NDArray[Any], columns: Sequence[RecordColumn]) -> Any:
    from pandas import CategoricalDtype, DataFrame, Series

    series_of_columns = []
    for values, column in zip(x.T, columns):
        if column.dtype.kind == "M":
            series_of_columns.append(_days_to_dates(values, column.dtype))
            continue
        if column.values is None:
            series_of_columns.append(Series(values).astype(column.dtype))
            continue
        codes = np.where(np.isnan(values), len(column.values), values).astype(int)
        series = Series(np.array([*column.values, None], dtype=object)[codes])
        kind = column.dtype
        if isinstance(kind, CategoricalDtype) and not set(kind.categories) >= set(column.values):
            kind = CategoricalDtype(column.values)
        series_of_columns.append(series.astype(kind))
    table = DataFrame({codes: series for codes, series in enumerate(series_of_columns)})
    table.columns = [column.name for column in columns]  # type: ignore[assignment]
    return table


def _as_array(values: Any) -> NDArray[Any]:
    if isinstance(values, Tensor):
        plain = values.detach().cpu()
        small = plain.is_floating_point() and plain.dtype not in (
            torch.float16,
            torch.float32,
            torch.float64,
        )
        return (plain.float() if small else plain).numpy()
    return np.asarray(values)


def number_labels(key: str, labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any] | None]:
    """-> (labels as whole numbers from 0, None); for text, and for numbers below 0 or above
    ``MAX_LABEL``, (positions in the sorted names, these names). Raises BadConfig."""
    if labels.dtype.kind == "O":
        if any(label is None or label != label for label in labels.tolist()):
            raise BadConfig(f"{key}: y must hold a label for each record; some are missing")
        kinds = {type(label) for label in labels.tolist()}
        if kinds <= {str, np.str_}:
            labels = labels.astype(str)
        else:
            labels = np.array(labels.tolist())
    if labels.dtype.kind in "US":
        names, back = np.unique(labels.astype(str), return_inverse=True)
        return back.astype(np.int64), names
    if (
        labels.dtype.kind not in "biuf"
        or not np.isfinite(labels).all()
        or not (labels == np.floor(labels)).all()
    ):
        kind_text = f"{labels.dtype}"
        if labels.dtype.kind == "f":
            kind_text += f" with {labels[~np.isfinite(labels) | (labels != np.floor(labels))][0]:g}"
        raise BadConfig(
            f"{key}: y must hold whole numbers or text, one class for each record, got {kind_text}"
        )
    if (most := np.abs(labels.astype(np.float64)).max()) > 2**53:
        raise BadConfig(f"{key}: y must number or name classes, got labels up to {most:.3g}")
    integers = labels.astype(np.int64)
    if integers.min() >= 0 and integers.max() <= MAX_LABEL:
        return integers, None
    names, back = np.unique(integers, return_inverse=True)
    return back.astype(np.int64), names


def _scale_bytes(values: NDArray[Any]) -> Tensor:
    """Bytes of pictures as fractions, other whole numbers and reals as they are."""
    if values.dtype == np.uint8 and values.ndim > 2:
        return torch.from_numpy(values.astype(np.float32) / 255)
    if values.dtype.kind in "bu":
        values = values.astype(np.int64)
    if (
        values.dtype.itemsize > 8 or not values.dtype.isnative
    ):  # torch has neither long doubles nor foreign byte orders
        values = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    return torch.from_numpy(np.ascontiguousarray(values))


def _one_hot_hint(labels: NDArray[Any]) -> str:
    """Advice for labels that have a column for each class."""
    if labels.ndim != 2 or labels.dtype.kind not in "biuf":
        return ""
    hot = ((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all()
    if hot:
        return "; give y.argmax(1)"
    return "; a record has one class here"


def _locate_first(wrong: NDArray[Any]) -> str:
    """The position of the first invalid value."""
    return f"a value of record {int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))} (from 0)"


def _list_few(names: Sequence[Any]) -> str:
    first_names = ", ".join(
        repr(name) if isinstance(name, str) else f"{name}" for name in names[:5]
    )
    if len(names) > 5:
        return f"{first_names} and {len(names) - 5} more"
    return first_names


def flatten_records(x: Tensor, scale: Tensor | None = None) -> Tensor:
    """(n, d) float64, each coordinate in units of ``scale`` (d,)."""
    values = x.flatten(1).double()
    return values if scale is None else values / scale


def coordinate_scales(x: Tensor, pictures: bool) -> Tensor:
    """(d,): the unit of each coordinate: 1 for pixels, else its standard deviation over x (n, ...),
    1 where that is 0."""
    values = flatten_records(x)
    if pictures:
        return torch.ones(values.shape[1], dtype=torch.float64)
    deviations = values.std(0)
    return torch.where(deviations > 0, deviations, torch.ones_like(deviations))

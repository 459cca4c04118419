"""Tables in files: .npz, .csv and .parquet, and those of Adult and Location-30, as columns by
heading."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.validation import check_archive
from privdd.core.validation import BadConfig
from privdd.data.own_data import own_data_place

Values = NDArray[Any]  # (n,) of a column: numbers, or text with None for a missing value
CsvRow = list[str]
LABEL = "label"  # the heading of the classes, in files without headings
LARGEST_FILE = 2**30  # bytes of a csv
# adult.names of the UCI repository, in the order of the files' columns
ADULT_HEADINGS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    LABEL,
)


@dataclass(frozen=True)
class TableFile:
    """What a file holds.

    Attributes:
        train: Heading -> values, the classes under ``label``.
        test: Likewise of a test part; None if there is none.
        label: The heading of the classes.
        note: What the table is, in a sentence.
    """

    train: Mapping[str, Values]
    test: Mapping[str, Values] | None
    label: str
    note: str


def read_table_file(root: Path | None, label: str | None) -> TableFile:
    """A table of the user's own.

    Args:
        root: A .npz with x (n, d) and y (n,), and names (d,) of the columns, x_test and y_test if
            there are any; a .csv with headings; a .parquet.
        label: The heading of the classes, in a .csv and a .parquet.

    Raises:
        DataNotFound: Without the file.
        BadConfig: One line, for a file that holds no table.
    """
    place = own_data_place("table", root)
    note = f"the user's table in {place.name}"
    suffix = place.suffix.lower()
    if suffix == ".npz":
        return _read_npz(place, note)
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if suffix not in readers:
        raise BadConfig(f"data.root={place}: a .npz, .csv or .parquet is needed")
    table = readers[suffix](place)
    if label not in table:
        raise BadConfig(
            f"data.label={label}: the heading of the column of classes is needed, one of "
            f"{', '.join(table)}"
        )
    return TableFile(table, None, str(label), note)


def read_adult(root: Path | None) -> TableFile:
    """Adult (Becker and Kohavi 1996, UCI): adult.data and adult.test in the folder ``root``."""
    folder = own_data_place("adult", root)
    parts = []
    for name in ("adult.data", "adult.test"):
        if not (folder / name).is_file():
            raise BadConfig(f"data.root={folder}: {name} is missing")
        table = _table_of_rows(folder / name, _csv_rows(folder / name), ADULT_HEADINGS)
        # classes end with a full stop in the test file alone
        table[LABEL] = np.array([value.rstrip(".") for value in table[LABEL]], object)
        parts.append(table)
    return TableFile(parts[0], parts[1], LABEL, "Adult (UCI), income above 50,000 dollars or not")


def read_location30(root: Path | None) -> TableFile:
    """Location-30 (Shokri et al. 2017): the file ``bangkok``, a class from 1 to 30 and 446 bits a
    row."""
    place = own_data_place("location30", root)
    rows = list(_csv_rows(place))
    width = len(rows[0]) if rows else 0
    headings = (LABEL, *(f"place {number}" for number in range(1, width)))
    table = _table_of_rows(place, rows, headings)
    return TableFile(table, None, LABEL, "Location-30, visits of users to places")


def _read_npz(place: Path, note: str) -> TableFile:
    try:
        check_archive(place)
        with np.load(place, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except Exception as error:  # a damaged zip raises EOFError, zlib.error and others
        reason = " ".join(str(error).split())[:120]
        raise BadConfig(f"data.root={place}: not a .npz file of plain arrays ({reason})") from error
    if not {"x", "y"} <= set(arrays):
        raise BadConfig(f"data.root={place}: arrays x and y are needed, found {sorted(arrays)}")
    width = arrays["x"].shape[-1] if arrays["x"].ndim == 2 else 0
    headings = [str(name) for name in arrays.get("names", np.arange(width))]
    train = _table_of_arrays(place, arrays["x"], arrays["y"], headings)
    test = None
    if {"x_test", "y_test"} <= set(arrays):
        test = _table_of_arrays(place, arrays["x_test"], arrays["y_test"], headings)
    return TableFile(train, test, LABEL, note)


def _table_of_arrays(
    place: Path, x: Values, y: Values, headings: Sequence[str]
) -> dict[str, Values]:
    if x.ndim != 2 or x.shape[1] != len(headings) or y.shape != (len(x),) or not x.size:
        raise BadConfig(
            f"data.root={place}: x (n, d), y (n,) and names (d,) are needed, got {x.shape}, "
            f"{y.shape} and {len(headings)} names; data=npz reads images"
        )
    if LABEL in headings:
        raise BadConfig(
            f"data.root={place}: y holds the labels, so no column may be called {LABEL!r}"
        )
    return {**dict(zip(headings, x.T)), LABEL: y}


def _read_csv(place: Path) -> dict[str, Values]:
    rows = iter(_csv_rows(place))
    return _table_of_rows(place, rows, next(rows, []))


def _csv_rows(place: Path) -> Iterable[CsvRow]:
    """Rows of text without empty lines and lines that begin with |."""
    if place.stat().st_size > LARGEST_FILE:
        raise BadConfig(f"data.root={place}: more than {LARGEST_FILE >> 30} GiB; write an .npz")
    try:
        with place.open(encoding="utf-8-sig", newline="") as file:
            for row in csv.reader(file, skipinitialspace=True):
                if row and not row[0].startswith("|"):
                    yield [value.strip() for value in row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadConfig(f"data.root={place}: no csv in UTF-8 ({error})") from error


def _table_of_rows(
    place: Path, rows: Iterable[CsvRow], headings: Sequence[str]
) -> dict[str, Values]:
    """heading -> text of every row."""
    if len(set(headings)) != len(headings) or not headings:
        raise BadConfig(f"data.root={place}: the first line must hold a heading for each column")
    columns: list[list[str]] = [[] for _ in headings]
    for number, row in enumerate(rows):
        if len(row) != len(headings):
            raise BadConfig(
                f"data.root={place}: record {number} (from 0) has {len(row)} values, there are "
                f"{len(headings)} columns"
            )
        for column, value in zip(columns, row):
            column.append(value)
    return {name: np.array(column, object) for name, column in zip(headings, columns)}


def _read_parquet(place: Path) -> dict[str, Values]:
    if not (importlib.util.find_spec("pandas") and importlib.util.find_spec("pyarrow")):
        raise BadConfig(
            f"data.root={place}: a .parquet needs pandas and pyarrow, which are not both installed;"
            " a .csv and an .npz are read without"
        )
    import pandas as pd

    frame = pd.read_parquet(place, engine="pyarrow")
    return {str(name): _column_of_frame(frame[name]) for name in frame.columns}


def _column_of_frame(series: Any) -> Values:
    """Numbers with NaN, or text with None, for missing values."""
    if series.dtype.kind in "iufb":
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    values = [None if gap else str(value) for value, gap in zip(series, series.isna())]
    return np.array(values, object)

"""Tables as records: named columns of numbers and of categories become rows of numbers in [0, 1].

The range of a column of numbers and the categories of a column of words are public: the user states
them. A range computed from the records would be a release of its own, of their extremes, which no
guarantee of a run covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privdd.core.rng import Keys
from privdd.core.types import DataColumn
from privdd.core.validation import BadConfig, check_choice, is_number
from privdd.data.dataset import Dataset, dataset_from_pairs
from privdd.data.readers import draw_split
from privdd.data.table_files import read_adult, read_location30, read_table_file

MISSING_RULES = ("refuse", "middle")
MISSING_WORDS = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "null", "None"})
LARGEST_TABLE = 2**28  # numbers that are written out, 1 GiB
RANGES_ARE_PUBLIC = (
    "state a public range or the categories of each column, as in "
    "data.columns={age:[17,90],sex:[female,male]}; computed from the records they would be a "
    "release of their extremes that no guarantee covers"
)
Values = NDArray[Any]  # (n,) of a column: numbers, or text
Rows = tuple[Tensor, Tensor]  # x (n, d) in [0, 1] and y (n,)


def parse_columns(stated: Any, names: Sequence[str]) -> tuple[DataColumn, ...]:
    """The columns that ``data.columns`` states.

    Args:
        stated: name -> [low, high] or a list of words; or one [low, high] for all of ``names``.
        names: the headings of the table, without its label.

    Raises:
        BadConfig: one line, for a column without a public range, or that the table does not have.
    """
    if isinstance(stated, Sequence) and not isinstance(stated, str):
        return tuple(_parse_column(name, stated) for name in names)
    if not isinstance(stated, Mapping) or not stated:
        raise BadConfig(f"data.columns={stated!r}: {RANGES_ARE_PUBLIC}")
    absent = [name for name in map(str, stated) if name not in names]
    if absent:
        raise BadConfig(
            f"data.columns: the table has no column {absent[0]!r}; it has {_list_names(names)}"
        )
    return tuple(_parse_column(str(name), value) for name, value in stated.items())


def _parse_column(name: str, stated: Any) -> DataColumn:
    is_list = isinstance(stated, Sequence) and not isinstance(stated, str)
    if is_list and len(stated) == 2 and all(map(is_number, stated)) and stated[0] < stated[1]:
        return DataColumn(name, float(stated[0]), float(stated[1]))
    words = list(stated) if is_list else []
    if words and all(isinstance(word, str) for word in words) and len({*words}) == len(words):
        return DataColumn(name, categories=tuple(words))
    raise BadConfig(f"data.columns.{name}={stated!r}: {RANGES_ARE_PUBLIC}")


def encode_columns(
    table: Mapping[str, Values], columns: Sequence[DataColumn], missing: str, where: str
) -> Tensor:
    """The rows (n, d) float32 in [0, 1] of a table.

    Numbers outside of their range are moved to its end.

    Args:
        table: heading -> values.
        columns: those that are read, in order.
        missing: "refuse"; or "middle": the middle of the range, and 0 for every category.
        where: how messages begin.

    Raises:
        ValueError: one line, for a value that is missing, no number or no category.
    """
    parts = [_encode_column(table[column.name], column, missing, where) for column in columns]
    if parts and len(parts[0]) * sum(part.shape[1] for part in parts) > LARGEST_TABLE:
        raise ValueError(f"{where}: more than {LARGEST_TABLE} numbers; read fewer columns or rows")
    return torch.from_numpy(np.concatenate(parts, 1))


def _encode_column(
    values: Values, column: DataColumn, missing: str, where: str
) -> NDArray[np.float32]:
    """(n, width) numbers in [0, 1]."""
    is_absent = _is_missing(values)
    if is_absent.any() and missing == "refuse":
        raise ValueError(
            f"{where}: column {column.name!r} lacks a value in record {int(is_absent.argmax())} "
            "(from 0); data.missing=middle puts the middle of the public range in its place, or no "
            "category"
        )
    if not column.categories:
        numbers = _to_numbers(np.where(is_absent, "0", values), column.name, where)
        scaled = ((numbers - column.low) / (column.high - column.low)).clip(0, 1)
        return np.where(is_absent, 0.5, scaled).astype(np.float32)[:, None]
    words = values.astype(str)
    is_category = words[:, None] == np.array(column.categories)[None]
    strange = ~is_absent & ~is_category.any(1)
    if strange.any():
        raise ValueError(
            f"{where}: column {column.name!r} holds {str(words[strange.argmax()])!r}, none of its "
            f"categories {_list_names(column.categories)}"
        )
    return (is_category & ~is_absent[:, None]).astype(np.float32)


def _is_missing(values: Values) -> NDArray[np.bool_]:
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "biu":
        return np.zeros(len(values), bool)
    return np.array([value is None or str(value) in MISSING_WORDS for value in values])


def _to_numbers(values: Values, name: str, where: str) -> NDArray[np.float64]:
    try:
        numbers = values.astype(np.float64)
    except ValueError:
        numbers = np.array([np.nan])
    if not np.isfinite(numbers).all():
        raise ValueError(f"{where}: column {name!r} must hold finite numbers")
    return numbers


def _list_names(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


@dataclass(frozen=True)
class TableSettings:
    """How the columns of a table are read.

    Attributes:
        columns: name -> the public range [low, high] or the public list of words; or one range for
            all columns.
        label: The heading of the classes, in a file with headings.
        missing: What stands for a missing value, "refuse" or "middle".
        classes: The public list of what labels may be, in order; None: those that occur.

    Raises:
        BadConfig: for another rule of missing values, or classes that are no list of names.
    """

    columns: Any
    label: str | None = None
    missing: str = "refuse"
    classes: Sequence[str | int] | None = None

    def __post_init__(self) -> None:
        check_choice("data.missing", self.missing, MISSING_RULES)
        stated = self.classes
        if stated is None:
            return
        is_list = isinstance(stated, Sequence) and not isinstance(stated, str)
        names = {str(name) for name in stated} if is_list else set()
        if len(names) < 2 or len(names) != len(stated):
            raise BadConfig(
                f"data.classes={stated!r}: a list of at least two different names is needed, or "
                "null for the classes that occur in the file"
            )


def load_table(name: str, root: Path | None, settings: TableSettings, keys: Keys) -> Dataset:
    """A table from a file.

    Args:
        name: table, adult or location30.
        root: The file, or the folder of Adult's files.
        settings: How its columns are read.
        keys: Which fifth is for test, if the file has no test part.

    Raises:
        DataNotFound: without the file.
        ValueError: one line, for a file or columns that cannot be read.
    """
    if name == "adult":
        file = read_adult(root)
    elif name == "location30":
        file = read_location30(root)
    else:
        file = read_table_file(root, settings.label)
    headings = [heading for heading in file.train if heading != file.label]
    columns = parse_columns(settings.columns, headings)
    where = f"data.root={root}"
    parts = [file.train] if file.test is None else [file.train, file.test]
    labels = [part[file.label] for part in parts]
    if settings.classes is None:
        classes = name_classes(labels, where)
        source = ""
    else:
        classes = [str(name) for name in settings.classes]
        check_labels(labels, classes, where)
        source = "stated "
    pairs = []
    for part in parts:
        x = encode_columns(part, columns, settings.missing, where)
        pairs.append((x, _number_classes(part[file.label], classes)))
    if file.test is None:
        x, y = pairs[0]
        pairs = [(x[rows], y[rows]) for rows in draw_split(len(y), keys)]
    note = (
        f"{file.note}; {len(columns)} columns in stated ranges, {source}classes "
        f"{_list_names(classes)}"
    )
    if not source:
        note += ", as they occur in it (data.classes states them as public)"
    return table_from_pairs(name, note, len(classes), columns, pairs)


def name_classes(labels: Sequence[Values], where: str) -> list[str]:
    """The classes in their order: of numbers by size, else by the alphabet.

    Args:
        labels: (n,) of each part of a table.
        where: how messages begin.

    Raises:
        ValueError: one line, for a label that is missing, and for fewer than two classes.
    """
    if any(_is_missing(part).any() for part in labels):
        raise ValueError(f"{where}: some records have no label; leave them out")
    names = sorted({str(value) for part in labels for value in part.tolist()})
    if len(names) < 2:
        raise ValueError(f"{where}: records of at least two classes are needed")
    try:
        return sorted(names, key=float)
    except ValueError:
        return names


def check_labels(labels: Sequence[Values], classes: Sequence[str], where: str) -> None:
    """Check that every label is one of the stated classes.

    Args:
        labels: (n,) of each part of a table.
        classes: ``data.classes`` as text.
        where: how messages begin.

    Raises:
        ValueError: one line, for a label that is missing or no class.
    """
    if any(_is_missing(part).any() for part in labels):
        raise ValueError(f"{where}: some records have no label; leave them out")
    strange = {str(value) for part in labels for value in part.tolist()} - set(classes)
    if strange:
        raise ValueError(
            f"{where}: the label {min(strange)!r} is none of data.classes, {_list_names(classes)}"
        )


def _number_classes(labels: Values, classes: Sequence[str]) -> Tensor:
    number = {name: place for place, name in enumerate(classes)}
    return torch.tensor([number[str(value)] for value in labels.tolist()])


def load_breast_cancer_dataset(stated: Any, keys: Keys) -> Dataset:
    """scikit-learn's breast cancer: 569 rows of 30 numbers, malignant (0) or benign (1); every
    fifth for test.

    Args:
        stated: ``data.columns``, the published range of each column.
        keys: unused; the split is fixed.
    """
    from sklearn.datasets import load_breast_cancer  # slow to import, so only here

    bunch = load_breast_cancer()
    names = [str(name) for name in bunch.feature_names]
    columns = parse_columns(stated, names)
    table = dict(zip(names, bunch.data.T))
    x = encode_columns(table, columns, "refuse", "data=breast_cancer")
    y = torch.from_numpy(bunch.target).long()
    is_test = torch.arange(len(y)) % 5 == 4
    return table_from_pairs(
        "breast_cancer",
        "scikit-learn's breast cancer (UCI Breast Cancer Wisconsin, diagnostic): 569 tumours, 30 "
        "columns scaled by the ranges that its documentation prints, every fifth for test",
        2,
        columns,
        [(x[~is_test], y[~is_test]), (x[is_test], y[is_test])],
    )


def table_from_pairs(
    name: str, note: str, classes: int, columns: Sequence[DataColumn], pairs: Sequence[Rows]
) -> Dataset:
    """A data set whose records are rows, with what its columns mean.

    Args:
        name: as asked for.
        note: what it is, in a sentence.
        classes: how many.
        columns: those of a row, in order.
        pairs: of the training and of the test part.
    """
    train, test = pairs
    return dataset_from_pairs(name, note, classes, train, test, columns=tuple(columns))

"""Records from files and arrays: any shape, and one line for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from scipy import sparse

from privdd.core.validation import BadConfig
from privdd.external.records import (
    align_columns,
    check_same_shape,
    fill_gaps,
    read_records,
    records_from_arrays,
)

X = np.zeros((30, 4))
Y = np.arange(30) % 3


def test_any_shape_and_kind_comes_through(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.full((30, 1, 8, 8), 255, np.uint8), y=Y.astype(np.uint8))
    pictures = read_records("target.train", tmp_path / "a.npz")
    assert (
        pictures.has_pictures
        and pictures.record_shape == (1, 8, 8)
        and float(pictures.x.max()) == 1.0
    )
    table = records_from_arrays("x", X, Y[:, None])
    assert (
        not table.has_pictures
        and table.x.dtype == torch.float64
        and table.original_arrays()[0].dtype == np.float64
    )
    whole = records_from_arrays("x", np.full((30, 4), 200, np.uint8), Y)
    assert whole.x.dtype == torch.int64 and int(whole.x[0, 0]) == 200  # of a table: no brightness
    for kind, value in ((np.longdouble, 3.5), (">f4", 3.5), (">i4", 3)):
        assert (
            float(records_from_arrays("x", np.full((30, 4), value, kind), Y).x.sum()) == 120 * value
        )
    brought = records_from_arrays("x", torch.zeros(30, 2, 5), torch.from_numpy(Y))
    assert (
        isinstance(brought.original_arrays()[0], torch.Tensor)
        and len(brought.select_rows(torch.arange(4))) == 4
    )


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (X[:, 0], Y, r"x \(n, ...\) and y \(n,\) are needed, got \(30,\)"),
        (X, Y[:7], r"got \(30, 4\) and \(7,\)"),
        (X[:5], Y[:5], "5 records; at least 20"),
        (
            np.where(X == 0, np.inf, X),
            Y,
            r"x must hold finite numbers or NaN.* record 0 \(from 0\) is infinite",
        ),
        (X.astype(str), Y, "x must hold numbers, got <U.*; text needs a table of pandas"),
        (
            np.array([[1, "a"]] * 30, dtype=object),
            Y,
            "x holds int and other objects; give numbers, or a table",
        ),
        (
            X,
            Y + 0.5,
            "y must hold whole numbers or text, one class for each record, got float64 with 0.5",
        ),
        (X, np.where(Y == 1, np.nan, Y), "got float64 with nan"),
        (X, np.full(30, 1e300), r"y must number or name classes, got labels up to 1e\+300"),
        (X, np.eye(3)[Y], r"got \(30, 4\) and \(30, 3\); give y.argmax\(1\)"),
        (X, np.stack([Y % 2, Y % 2], 1), "a record has one class here"),
        (
            X,
            np.array([None, "a"] * 15, dtype=object),
            "y must hold a label for each record; some are missing",
        ),
        (
            pandas.DataFrame({"t": pandas.timedelta_range("1h", periods=30)}),
            Y,
            "column t holds timedelta64",
        ),
    ],
)
def test_a_wrong_array_is_one_line(x: Any, y: Any, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        records_from_arrays("target.train=a.npz", x, y)
    assert str(caught.value).startswith("target.train=a.npz") and "\n" not in str(caught.value)


def test_dates_are_days_and_come_back() -> None:
    dates = pandas.Series(pandas.date_range("1970-01-02 12:00", periods=30, freq="36h"))
    dates[3] = pandas.NaT
    table = pandas.DataFrame(
        {"t": dates, "zone": dates.dt.tz_localize("Europe/Berlin"), "n": np.arange(30.0)}
    )
    found = records_from_arrays("target.train", table, Y)
    assert found.x[:2, 0].tolist() == [1.5, 3.0] and bool(found.x[3, 0].isnan())
    assert found.x[0, 1] == 1.5 - 1 / 24  # an hour before UTC
    pandas.testing.assert_frame_equal(found.form.original_rows(found.x), table)


def test_arrays_may_be_named_as_keras_names_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "keras.npz", x_train=X, y_train=Y, x_test=X[:5], y_test=Y[:5])
    found = read_records("target.train", tmp_path / "keras.npz")
    assert torch.equal(found.x, torch.from_numpy(X)) and found.y.tolist() == Y.tolist()
    np.savez(tmp_path / "half.npz", x_train=X, labels=Y, x_test=X[:5])
    with pytest.raises(BadConfig, match="found labels, x_test, x_train"):
        read_records("target.train", tmp_path / "half.npz")


def test_a_wrong_file_is_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "pickled.npz", x=np.array([{}, None], dtype=object), y=Y)
    np.savez(tmp_path / "other.npz", z=X)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:60])
    (tmp_path / "a.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    for name, said in {
        "none.npz": "no such file",
        "pickled.npz": "pickled objects",
        "other.npz": "arrays x and y are needed, found z",
        "cut.npz": "not an .npz of plain arrays",
        "a.pkl": "an .npz with arrays x and y is needed",
    }.items():
        with pytest.raises(BadConfig, match=said) as caught:
            read_records("target.train", tmp_path / name)
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_two_sets_are_of_one_shape() -> None:
    check_same_shape("a", records_from_arrays("a", X, Y), "b", records_from_arrays("b", X, Y))
    with pytest.raises(BadConfig, match=r"b: records of shape \(3,\), those of a have \(4,\)"):
        check_same_shape(
            "a", records_from_arrays("a", X, Y), "b", records_from_arrays("b", X[:, :3], Y)
        )


@pytest.mark.parametrize(
    "y",
    [
        np.array(["b", "a", "c"])[Y],
        np.array(["b", "a", "c"], dtype=object)[Y],
        pandas.Series(np.array(["b", "a", "c"])[Y]),
        pandas.Series(np.array(["b", "a", "c"])[Y]).astype("category"),
        np.array([-1, 7, 10**9])[Y],
        Y.astype(np.float16),
        torch.from_numpy(Y).to(torch.bfloat16),
        Y[:, None] == 1,
        pandas.array(Y, dtype="Int64"),
    ],
)
def test_labels_come_back_as_they_were_brought(y: Any) -> None:
    plain = np.asarray(y.float() if isinstance(y, torch.Tensor) else y).reshape(-1).tolist()
    found = records_from_arrays("a", X, y)
    assert (
        found.original_labels().tolist() == plain and found.original_arrays()[1].tolist() == plain
    )
    order = np.array(sorted(set(plain), reverse=True))
    turned = found.number_labels(order, "a")
    assert turned.original_labels().tolist() == plain and order[turned.y].tolist() == plain
    with pytest.raises(BadConfig, match=r"a: y holds .*, the model's classes are"):
        found.number_labels(order[1:], "a")


def test_tables_and_sparse_matrices_are_given_as_they_were_brought() -> None:
    """Text is coded alike in both files, whatever each file holds; values that are missing stay
    missing."""
    one = pandas.DataFrame(
        {"age": range(30), "town": ["B", "A", None] * 10, "rate": np.linspace(0, 1, 30)}
    ).astype({"rate": "float32"})
    other = one.assign(town=["C", "A", "D"] * 10)
    made = align_columns(
        {"a": records_from_arrays("a", one, Y), "b": records_from_arrays("b", other, Y)}
    )
    for found, brought in zip(made, (one, other)):
        back = found.original_arrays()[0]
        pandas.testing.assert_frame_equal(
            back.astype({"town": object}), brought.astype({"town": object})
        )
    codes = torch.cat([each.x[:, 1] for each in made])
    text = [*one.town, *other.town]
    assert all(
        (text[i] == text[j]) == bool(codes[i] == codes[j])
        for i in range(60)
        for j in range(60)
        if text[i] and text[j]
    )
    with pytest.raises(BadConfig, match="b: columns 'age', 'rate'"):
        align_columns(
            {
                "a": records_from_arrays("a", one, Y),
                "b": records_from_arrays("b", one[["age", "rate", "town"]], Y),
            }
        )
    matrix = sparse.csr_matrix(np.eye(30, 4))
    assert sparse.issparse(
        records_from_arrays("a", matrix, Y).original_arrays()[0]
    ) and torch.equal(records_from_arrays("a", matrix, Y).x, torch.eye(30, 4).double())


def test_gaps_become_the_mean_and_a_column_that_says_where() -> None:
    holes = torch.tensor([[1.0, 5.0], [float("nan"), 5.0]]), torch.tensor([[3.0, 5.0]])
    one, other = fill_gaps(*holes)
    assert one.tolist() == [[1, 5, 0], [2, 5, 1]] and other.tolist() == [[3, 5, 0]]
    assert fill_gaps(holes[1])[0].shape == (1, 2)

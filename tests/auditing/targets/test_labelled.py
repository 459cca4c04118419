"""Records from files and arrays: any shape, and one line for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privdd.auditing.targets.labelled import check_alike, labelled, read
from privdd.core.errors import BadConfig

X, Y = np.zeros((30, 4)), np.arange(30) % 3


def test_any_shape_and_kind_comes_through(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.full((30, 1, 8, 8), 255, np.uint8), y=Y.astype(np.uint8))
    pictures = read("target.train", tmp_path / "a.npz")
    assert pictures.pictures and pictures.shape == (1, 8, 8) and float(pictures.x.max()) == 1.0
    table = labelled("x", X, Y[:, None])
    assert not table.pictures and table.x.dtype == torch.float64 and table.given()[0].dtype == np.float64
    whole = labelled("x", np.full((30, 4), 200, np.uint8), Y)
    assert whole.x.dtype == torch.int64 and int(whole.x[0, 0]) == 200  # of a table: no brightness
    for kind, value in ((np.longdouble, 3.5), (">f4", 3.5), (">i4", 3)):
        assert float(labelled("x", np.full((30, 4), value, kind), Y).x.sum()) == 120 * value
    brought = labelled("x", torch.zeros(30, 2, 5), torch.from_numpy(Y))
    assert isinstance(brought.given()[0], torch.Tensor) and len(brought.at(torch.arange(4))) == 4


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (X[:, 0], Y, r"x \(n, ...\) and y \(n,\) are needed, got \(30,\)"),
        (X, Y[:7], r"got \(30, 4\) and \(7,\)"),
        (X[:5], Y[:5], "5 records; at least 20"),
        (np.where(X == 0, np.nan, X), Y, "x must hold finite numbers"),
        (X.astype(str), Y, "x must hold finite numbers"),
        (X, Y - 1, "y must hold whole numbers from 0, got int64 with -1"),
        (X, Y + 0.5, "y must hold whole numbers from 0"),
    ],
)
def test_a_wrong_array_is_one_line(x: Any, y: Any, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        labelled("target.train=a.npz", x, y)
    assert str(caught.value).startswith("target.train=a.npz") and "\n" not in str(caught.value)


def test_a_wrong_file_is_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "pickled.npz", x=np.array([{}, None], dtype=object), y=Y)
    np.savez(tmp_path / "other.npz", z=X)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:60])
    (tmp_path / "a.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    for name, said in {
        "none.npz": "no such file", "pickled.npz": "pickled objects", "other.npz": "arrays x and y are needed, found z",
        "cut.npz": "not an .npz of plain arrays", "a.pkl": "an .npz with arrays x and y is needed",
    }.items():  # fmt: skip
        with pytest.raises(BadConfig, match=said) as caught:
            read("target.train", tmp_path / name)
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_two_sets_are_of_one_shape() -> None:
    check_alike("a", labelled("a", X, Y), "b", labelled("b", X, Y))
    with pytest.raises(BadConfig, match=r"b: records of shape \(3,\), those of a have \(4,\)"):
        check_alike("a", labelled("a", X, Y), "b", labelled("b", X[:, :3], Y))

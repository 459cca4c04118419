"""Tables in files, against tables that were written by other hands: numpy, csv and pandas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig, DataNotFound
from privdd.data.dataset import is_published
from privdd.data.sources import load_dataset

COLUMNS = {"age": [17, 90], "sex": ["female", "male"]}
ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, {}"
)
ADULT_GAPS = (
    "16, ?, 103497, Some-college, 10, Never-married, ?, Own-child, White, Female, 0, 0, 30, ?, {}"
)


def write_people(file: Path, count: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    people = pd.DataFrame(
        {
            "age": rng.integers(17, 91, count),
            "city": ["here"] * count,
            "ill": rng.choice(["no", "yes"], count),
            "sex": rng.choice(["female", "male"], count),
        }
    )
    people.to_csv(file, index=False)
    return people


def whole(data):
    """All rows and classes, in the order of the file."""
    ids = np.concatenate([data.train.ids, data.test.ids])
    return (
        np.concatenate([data.train.x, data.test.x]),
        np.concatenate([data.train.y, data.test.y]),
        ids,
    )


def test_a_csv_is_read_as_pandas_reads_it(tmp_path):
    people = write_people(tmp_path / "people.csv")
    data = load_dataset(
        "table", root=tmp_path / "people.csv", columns=COLUMNS, label="ill", keys=Keys(0)
    )
    wanted = np.stack(
        [(people.age - 17) / 73, people.sex == "female", people.sex == "male", people.ill == "yes"],
        1,
    )
    x, y, _ = whole(data)
    got = np.concatenate([x, y[:, None]], 1)
    assert data.shape == (3,) and data.classes == 2 and (len(data.train), len(data.test)) == (32, 8)
    order = np.lexsort(np.round(got, 5).T)
    assert np.allclose(
        got[order], wanted.astype(float)[np.lexsort(np.round(wanted.astype(float), 5).T)]
    )
    assert "classes 'no', 'yes'" in data.note


def test_an_npz_has_its_own_test_part_and_one_range_for_all(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.integers(0, 11, (30, 5)), "x_test": rng.integers(0, 11, (10, 5))}
    labels = {"y": np.arange(30) % 3, "y_test": np.arange(10) % 3}
    np.savez(tmp_path / "t.npz", **arrays, **labels)
    data = load_dataset("table", root=tmp_path / "t.npz", columns=[0, 10], keys=Keys(0))
    assert np.allclose(data.train.x, arrays["x"] / 10)
    assert np.allclose(data.test.x, arrays["x_test"] / 10) and data.classes == 3
    assert data.test.y.tolist() == labels["y_test"].tolist()


def test_stated_classes_are_in_their_order_whether_they_occur_or_not(tmp_path):
    people = write_people(tmp_path / "people.csv")
    given = {"columns": COLUMNS, "label": "ill", "keys": Keys(0)}
    read = [
        load_dataset("table", root=tmp_path / "people.csv", classes=classes, **given)
        for classes in (["yes", "maybe", "no"], None)
    ]
    stated, found = (whole(data)[1] for data in read)
    assert [data.classes for data in read] == [3, 2]
    assert (stated == 0).sum() == (people.ill == "yes").sum() and set(stated) == {0, 2}
    assert (found == (stated == 0)).all()
    assert "stated classes 'yes', 'maybe', 'no'" in read[0].note
    assert "as they occur in it" in read[1].note and "as they occur" not in read[0].note


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    (tmp_path / "t.csv").write_text("a,c\n" + "".join(f"{k % 2},{k % 11}\n" for k in range(44)))
    data = load_dataset(
        "table", root=tmp_path / "t.csv", columns={"a": [0, 1]}, label="c", keys=Keys(0)
    )
    x, y, _ = whole(data)
    assert data.classes == 11 and "'8', '9'" not in data.note.split("classes")[0]
    assert sorted(zip(y.tolist(), x[:, 0].tolist())) == sorted((k % 11, k % 2) for k in range(44))


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("a,c\n1,x\n2,y\n", {"label": "d"}, r"data\.label=d: .* one of a, c"),
        ("a,c\n1,x\n2\n", {"label": "c"}, "record 1 .from 0. has 1 values, there are 2 columns"),
        ("a,a\n1,x\n", {"label": "a"}, "a heading for each column"),
        ("a,c\n1,x\n2,\n", {"label": "c"}, "some records have no label"),
        ("a,c\n1,x\n2,x\n", {"label": "c"}, "at least two classes"),
        ("a,c\none,x\n2,y\n", {"label": "c"}, "column 'a' must hold finite numbers"),
        ("a,c\n1,x\n2,y\n", {"label": "c", "columns": None}, "a release of their extremes"),
        ("a,c\n1,x\n2,y\n", {"label": "c", "classes": ["y", "z"]}, "'x' is none of data.classes"),
        ("a,c\n1,x\n2,\n", {"label": "c", "classes": ["x", "y"]}, "have no label"),
        ("a,c\n1,x\n2,y\n", {"label": "c", "classes": ["y", "y"]}, "at least two different names"),
        ("a,c\n1,x\n2,y\n", {"label": "c", "classes": "xy"}, "at least two different names"),
        ("a,c\n1,x\n2,y\n", {"label": "c", "missing": "mean"}, r"data\.missing=mean: allowed are"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(tmp_path, text, settings, said):
    (tmp_path / "t.csv").write_text(text)
    given = {"columns": {"a": [0, 9]}, **settings}
    with pytest.raises(ValueError, match=said):
        load_dataset("table", root=tmp_path / "t.csv", keys=Keys(0), **given)


def test_a_parquet_without_its_packages_is_refused(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadConfig, match=r"needs pandas and pyarrow"):
        load_dataset("table", root=tmp_path / "t.parquet", columns=[0, 1], keys=Keys(0))


def test_a_parquet_is_read_as_a_csv_of_the_same_rows(tmp_path):
    pytest.importorskip("pyarrow", reason="a .parquet is written and read by pyarrow")
    people = write_people(tmp_path / "people.csv")
    people.to_parquet(tmp_path / "people.parquet")
    one, other = (
        load_dataset(
            "table", root=tmp_path / f"people.{kind}", columns=COLUMNS, label="ill", keys=Keys(0)
        )
        for kind in ("csv", "parquet")
    )
    assert np.array_equal(one.train.x, other.train.x) and np.array_equal(one.test.y, other.test.y)


def test_adult_reads_both_files_and_their_gaps(tmp_path):
    lines = [ADULT_ROW.format("<=50K"), ADULT_GAPS.format(">50K")] * 5
    (tmp_path / "adult.data").write_text("\n".join(lines) + "\n\n")
    test = ["|1x3 Cross validator", *(f"{line}." for line in lines[:4])]
    (tmp_path / "adult.test").write_text("\n".join(test) + "\n")
    settings = ["data=adult", f"data.root={tmp_path}", "preset=smoke", "partition.clients=1"]
    config = compose_config("audit", [*settings, "partition=iid", "algo=fedavg", "attack=[lira]"])
    data = build_experiment(config).dataset
    assert (len(data.train), len(data.test), data.classes) == (10, 4, 2)
    assert "classes '<=50K', '>50K'" in data.note
    columns = {column.name: column for column in data.columns}
    assert len(data.columns) == 12 and sum(c.width for c in data.columns) == data.shape[0]
    first, gaps = data.train.x[:2]
    assert first[0] == pytest.approx((39 - 16) / 74) and gaps[0] == 0
    work = slice(1, 1 + columns["workclass"].width)
    assert first[work].tolist() == [0, 0, 0, 0, 0, 1, 0, 0] and gaps[work].sum() == 0
    country = slice(data.shape[0] - columns["native-country"].width, None)
    assert first[country].argmax() == 0 and gaps[country].sum() == 0
    assert config.audit.show_images == "auto" and not is_published(data)


def test_location30_reads_a_class_and_bits(tmp_path):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (60, 7))
    lines = [",".join([f'"{k % 30 + 1}"', *map(str, row)]) for k, row in enumerate(bits)]
    (tmp_path / "bangkok").write_text("\n".join(lines))
    data = load_dataset("location30", root=tmp_path / "bangkok", columns=[0, 1], keys=Keys(0))
    x, y, _ = whole(data)
    assert data.classes == 30 and data.shape == (7,)
    assert sorted(map(tuple, np.c_[y, x].tolist())) == sorted(
        (k % 30, *row) for k, row in enumerate(bits.tolist())
    )


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(DataNotFound, match=r"data=table: data\.root=FILE is needed"):
        load_dataset("table", columns=[0, 1], keys=Keys(0))
    with pytest.raises(BadConfig, match=r"adult\.data is missing"):
        load_dataset("adult", root=tmp_path, columns={"age": [0, 1]}, keys=Keys(0))

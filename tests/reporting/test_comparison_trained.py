"""Trainings without an audit: the table over seeds, and folders that are no finished training."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import yaml

from privdd.reporting.comparison import KNOWN, print_training_table, read_training_record, write_training_table
from privdd.reporting.findings_file import FindingsError


def training(folder: Path, seed: int, accuracy: float, pld: object = 2.5) -> Path:
    folder.mkdir(parents=True)
    config = {"name": "fedavg", "seed": seed, "data": {"name": "digits"}, "preset": {"name": "smoke"}, "algo": {"lr": 0.1}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    result = {
        "accuracy": accuracy, "epsilon": {"pld": pld, "rdp": 3.5}, "delta": 1e-5, "unit": "record", "relation": "zero_out",
        "uploaded_bytes_per_client": 800, "downloaded_bytes_per_client": 400,
    }  # fmt: skip
    (folder / "training.json").write_text(json.dumps(result))
    return folder


def test_seeds_of_one_setting_are_one_row(tmp_path: Path) -> None:
    paths = [training(tmp_path / str(seed), seed, accuracy) for seed, accuracy in enumerate([0.5, 0.7])]
    written = write_training_table(paths, tmp_path)
    (row,) = csv.DictReader(written.open())
    assert tuple(row) == KNOWN and row["method"] == "fedavg" and int(row["seeds"]) == 2
    assert float(row["accuracy_mean"]) == pytest.approx(0.6)
    assert (float(row["accuracy_min"]), float(row["accuracy_max"])) == (0.5, 0.7)
    assert (float(row["epsilon_pld"]), float(row["epsilon_rdp"])) == (2.5, 3.5)
    assert int(float(row["uploaded_bytes_per_client"])) == 800


def test_what_is_printed_names_both_ends(tmp_path: Path) -> None:
    paths = [training(tmp_path / str(seed), seed, accuracy) for seed, accuracy in enumerate([0.5, 0.7])]
    out = io.StringIO()
    print_training_table(paths, out)
    assert all(part in out.getvalue() for part in ("Accuracy and accounted epsilon", "2.5", "3.5"))
    assert any(part in out.getvalue() for part in ("0.6", "60"))


def test_the_largest_epsilon_of_the_seeds_is_told(tmp_path: Path) -> None:
    """They differ where a seed changes how many records a client has."""
    paths = [training(tmp_path / str(seed), seed, 0.5, pld) for seed, pld in enumerate([2.5, 4.75])]
    (row,) = csv.DictReader(write_training_table(paths, tmp_path).open())
    out = io.StringIO()
    print_training_table(paths, out)
    assert row["epsilon_pld"] == "4.75" and "4.75" in out.getvalue() and "2.5" not in out.getvalue()


@pytest.mark.parametrize("missing", ["accuracy", "epsilon", "delta", "unit"])
def test_an_unfinished_training_is_one_line(tmp_path: Path, missing: str) -> None:
    folder = training(tmp_path / "run", 0, 0.5)
    kept = json.loads((folder / "training.json").read_text())
    kept.pop(missing)
    (folder / "training.json").write_text(json.dumps(kept))
    with pytest.raises(FindingsError, match="not a finished training") as caught:
        read_training_record(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)

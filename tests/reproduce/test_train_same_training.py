"""A training that two entries share is done once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import DictConfig

from privdd.cli.paper_rows import row_config
from privdd.reproduce import train
from privdd.reproduce import train as same_training_module
from privdd.reproduce.train import PaperCell, copy_row, find_same_training, train_cells

TINY = ("data=digits", "data.limit=120", "data.test_limit=60", "preset=smoke", "partition.clients=3", "model.width=4", "paper.terms.rounds=2", "algo=fedavg")


def cell(experiment: str, *more: str) -> PaperCell:
    return PaperCell("", "algo=fedavg", None, (f"experiment={experiment}", *TINY, *more))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = tmp_path_factory.mktemp("rows")
    assert train_cells([cell("fedrd_table1")], [0], rows / "fedrd_table1", 1, "first") == {}
    return rows


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "point.json"}


def test_another_entry_copies_it_whole(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "train_row", lambda *_: pytest.fail("trained again"))
    assert train_cells([cell("fedrd_table3")], [0], rows / "fedrd_table3", 1, "second") == {}
    (first,), (second,) = (list((rows / name).glob("*-seed0-*")) for name in ("fedrd_table1", "fedrd_table3"))
    assert files(first) == files(second) and "training.json" in files(first)


def test_a_copy_that_is_cut_off_is_no_finished_row(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    (source,) = (rows / "fedrd_table1").glob("*-seed0-*")
    monkeypatch.setattr(same_training_module.shutil, "copy2", full)  # of the last file; copytree keeps its own
    with pytest.raises(OSError, match="No space left"):
        copy_row(source, tmp_path / "row")
    assert (tmp_path / "row" / "manifest.json").is_file() and not (tmp_path / "row" / "training.json").exists()


@pytest.mark.parametrize(
    ("seed", "more"), [(2, ()), (0, ("algo.lr=0.01",)), (0, ("data.limit=110",)), (0, ("capture.clients=all",))], ids=str
)
def test_other_trainings_are_not_taken_for_it(rows: Path, seed: int, more: tuple[str, ...]) -> None:
    assert find_same_training(cell("fedrd_table3").overrides, 0, rows) is not None
    assert find_same_training(cell("fedrd_table3", *more).overrides, seed, rows) is None


def test_a_setting_that_has_another_default_today_is_another_row(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same words typed, other numbers: the finished row is neither shown nor gone on with."""
    before = cell("fedrd_table1").folder_name(0)
    assert (rows / "fedrd_table1" / before / "training.json").is_file()

    def today(overrides: Sequence[str], seed: int = 0) -> DictConfig:
        config = row_config(overrides, seed)
        config.algo.lr = 0.04
        return config

    for module in (train, same_training_module):
        monkeypatch.setattr(module, "row_config", today)
    assert cell("fedrd_table1").folder_name(0) != before and find_same_training(cell("fedrd_table1").overrides, 0, rows) is None


def test_a_row_that_kept_the_messages_of_all_clients_serves(rows: Path) -> None:
    cells = [cell("fedrd_table1", "capture.clients=all")]
    assert train_cells(cells, [1], rows / "fedrd_table1", 1, "all") == {}
    assert find_same_training(cell("fedrd_table3").overrides, 1, rows) == rows / "fedrd_table1" / cells[0].folder_name(1)


@pytest.mark.parametrize("written", ["", "[]", "{}", json.dumps({"config": 3})])
def test_a_damaged_or_unfinished_neighbour_is_passed_over(tmp_path: Path, written: str) -> None:
    row = tmp_path / "fedrd_table1" / "row"
    row.mkdir(parents=True)
    (row / "training.json").write_text("{}")
    (row / "manifest.json").write_text(written)
    assert find_same_training(cell("fedrd_table3").overrides, 0, tmp_path) is None


def test_a_row_that_is_not_finished_is_not_copied(rows: Path, tmp_path: Path) -> None:
    (row,) = (rows / "fedrd_table1").glob("*-seed0-*")
    for name, held in files(row).items():
        if name != "training.json":
            (tmp_path / "rows/fedrd_table1/row" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "rows/fedrd_table1/row" / name).write_bytes(held)
    assert find_same_training(cell("fedrd_table3").overrides, 0, tmp_path / "rows") is None

"""The catalogue of the papers' tables and figures."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from privdd.cli.config import choices, config_dir
from privdd.cli.paper_rows import paper_of, row_config
from privdd.cli.read_settings import plain
from privdd.core.errors import BadConfig
from privdd.data.partition import Partition
from privdd.reproduce.entries import ELSEWHERE, NOTHING, OUT, RUNS, SCALES, catalogue, find, papers, scale_overrides
from privdd.reproduce.entry_list import where
from privdd.reproduce.plan_rows import cells, merged, on_device

ENTRIES = list(catalogue().values())
RUNNING = [entry for entry in ENTRIES if entry.runs]


def test_every_experiment_is_reached_and_every_entry_resolves() -> None:
    assert {entry.experiment for entry in RUNNING} == {*choices("experiment", [config_dir()])}
    for entry in ENTRIES:
        assert re.fullmatch(r"(feddm|fedrd|fedfed|fedlgd)\.(table|figure)\d+[abc]?", entry.name)
        assert entry.kind in (RUNS, ELSEWHERE, NOTHING, OUT) and entry.shows
        assert entry.runs == bool(entry.experiment) == (not entry.why)
    assert len(ENTRIES) >= 45 and {entry.paper for entry in ENTRIES} == {*papers()}


@pytest.mark.parametrize("scale", SCALES)
def test_every_row_of_every_entry_is_a_training_with_one_value_for_each_key(scale: str) -> None:
    for entry in RUNNING:
        made = cells(entry, scale)
        assert made
        for cell in made:
            keys = [item.split("=")[0] for item in cell.overrides]
            assert len(keys) == len({*keys}) and {*cell.row.split()} <= {*cell.overrides}, (entry.name, cell.row)
            own = {part.split("=")[0] for part in cell.row.split()}  # a row may set a key of its scale itself
            assert {item for item in merged(scale_overrides(entry, scale, cell.row, cell.overrides)) if item.split("=")[0] not in own} <= {*cell.overrides}


@pytest.mark.parametrize("scale", ["small", "medium"])
def test_a_scale_has_records_for_all_of_its_clients(scale: str) -> None:
    """The even labels of 2000 or 8000 records cannot be dealt to 100 clients with 10 each."""
    crowded = {(entry.name, cell.column): cell for entry in RUNNING for cell in cells(entry, scale) if "partition.clients=100" in cell.overrides}
    assert {name for name, _ in crowded} >= {"fedfed.figure2b", "fedfed.table9"}
    for cell in crowded.values():
        config = row_config(cell.overrides, 0)
        labels, dealt = np.arange(config.data.limit) % 10, Partition(**plain(config.partition))
        for seed in range(3):
            found = dealt._rule(labels, 100, np.random.default_rng(seed))
            assert len(found) == 100 and min(map(len, found)) >= config.partition.min_size


def test_all_rows_are_trained_on_the_device_that_was_asked_for() -> None:
    assert on_device("cuda") == ("device=cuda",) and on_device("cpu") == ()


def test_what_the_text_says_is_about_rows_that_are_trained() -> None:
    for entry in RUNNING:
        for column in {cell.column for cell in cells(entry, "small")} if entry.ahead else ():
            assert column in paper_of(entry.experiment)["columns"]
        rows = {cell.row for cell in cells(entry, "small")}
        for one in entry.ahead:
            assert {one.better, one.worse} <= rows and one.better != one.worse and one.says, entry.name


def test_entries_that_compare_have_something_to_compare() -> None:
    """Two printed numbers, or a sentence; else the entry can only show what came out."""
    silent = {e.name for e in RUNNING if not e.ahead and not any(_printed(e, c) > 1 for c in paper_of(e.experiment)["columns"])}
    assert silent == {"fedfed.figure17", "fedfed.table12", "fedfed.table9"}  # one row a column, or no accuracy at all


def _printed(entry, column: str) -> int:
    return sum(value is not None for value in paper_of(entry.experiment)["columns"][column]["accuracy"].values())


def test_data_that_do_not_come_with_privdd_are_named() -> None:
    """An entry that runs on stand-ins says which data the paper's own scale needs, and no other entry does."""
    for entry in RUNNING:
        paper = paper_of(entry.experiment)
        assert bool(entry.needs) == bool(paper["stand_in"] or paper["offline"]["note"]), entry.name
        assert ("needs" in where(entry)) == bool(entry.needs)


def test_a_mistyped_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadConfig, match=r"did you mean fedrd\.table1\?"):
        find("fedrd.tabel1")
    with pytest.raises(BadConfig, match="reproduce list"):
        find("xyz")


def test_the_page_of_results_counts_them_as_they_are() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert f"{len(ENTRIES)} entries, of which {len(RUNNING)} run here" in " ".join(text.split())
    named = {*re.findall(r"privdd\.reproduce ((?:feddm|fedrd|fedfed|fedlgd)\.\w+)", text)}
    assert named and all(find(name).runs for name in named)

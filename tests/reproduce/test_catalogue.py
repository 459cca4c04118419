"""The catalogue of the papers' tables and figures."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from privdd.cli.compose import config_dir, group_choices
from privdd.cli.paper_block import paper_block
from privdd.cli.paper_rows import row_config
from privdd.cli.plain_config import to_plain_settings
from privdd.core.validation import BadConfig
from privdd.data.partition import Partition
from privdd.reproduce.catalogue import (
    NOTHING_TO_RUN,
    OUT_OF_REACH,
    RUNS_HERE,
    SCALES,
    SHOWN_ELSEWHERE,
    find_entry,
    load_catalogue,
    paper_details,
    scale_overrides,
)
from privdd.reproduce.catalogue_table import describe_availability
from privdd.reproduce.train import merge_overrides, paper_cells

ENTRIES = list(load_catalogue().values())
RUNNING = [entry for entry in ENTRIES if entry.is_trainable]


def test_every_experiment_is_reached_and_every_entry_resolves() -> None:
    assert {entry.experiment for entry in RUNNING} == {*group_choices("experiment", [config_dir()])}
    for entry in ENTRIES:
        assert re.fullmatch(r"(feddm|fedrd|fedfed|fedlgd)\.(table|figure)\d+[abc]?", entry.name)
        assert (
            entry.kind in (RUNS_HERE, SHOWN_ELSEWHERE, NOTHING_TO_RUN, OUT_OF_REACH) and entry.shows
        )
        assert entry.is_trainable == bool(entry.experiment) == (not entry.why)
    assert len(ENTRIES) >= 45 and {entry.paper for entry in ENTRIES} == {*paper_details()}


@pytest.mark.parametrize("scale", SCALES)
def test_every_row_of_every_entry_is_a_training_with_one_value_for_each_key(scale: str) -> None:
    for entry in RUNNING:
        made = paper_cells(entry, scale)
        assert made
        for cell in made:
            keys = [item.split("=")[0] for item in cell.overrides]
            assert len(keys) == len({*keys}) and {*cell.row.split()} <= {*cell.overrides}, (
                entry.name,
                cell.row,
            )
            # a row may set a key of its scale itself
            own = {part.split("=")[0] for part in cell.row.split()}
            assert {
                item
                for item in merge_overrides(scale_overrides(entry, scale, cell.row, cell.overrides))
                if item.split("=")[0] not in own
            } <= {*cell.overrides}


@pytest.mark.nightly(but=["small"])
@pytest.mark.parametrize("scale", ["small", "medium"])
def test_a_scale_has_records_for_all_of_its_clients(scale: str) -> None:
    """The even labels of 2000 or 8000 records cannot be dealt to 100 clients with 10 each."""
    crowded = {
        (entry.name, cell.column): cell
        for entry in RUNNING
        for cell in paper_cells(entry, scale)
        if "partition.clients=100" in cell.overrides
    }
    assert {name for name, _ in crowded} >= {"fedfed.figure2b", "fedfed.table9"}
    for cell in crowded.values():
        config = row_config(cell.overrides, 0)
        labels = np.arange(config.data.limit) % 10
        dealt = Partition(**to_plain_settings(config.partition))
        for seed in range(3):
            found = dealt._apply_rule(labels, 100, np.random.default_rng(seed))
            assert len(found) == 100 and min(map(len, found)) >= config.partition.min_size


def test_all_rows_are_trained_on_the_device_that_was_asked_for() -> None:
    for device, typed in (("cuda", True), ("cpu", False)):
        assert all(
            ("device=cuda" in cell.overrides) is typed
            for cell in paper_cells(find_entry("fedrd.table1"), "small", device)
        )


def test_what_the_text_says_is_about_rows_that_are_trained() -> None:
    for entry in RUNNING:
        for column in {cell.column for cell in paper_cells(entry, "small")} if entry.ahead else ():
            assert column in paper_block(entry.experiment)["columns"]
        rows = {cell.row for cell in paper_cells(entry, "small")}
        for one in entry.ahead:
            assert {one.better, one.worse} <= rows and one.better != one.worse and one.says, (
                entry.name
            )


def test_entries_that_compare_have_something_to_compare() -> None:
    """Two printed numbers, or a sentence; else the entry can only show what came out."""
    silent = {
        e.name
        for e in RUNNING
        if not e.ahead and not any(_printed(e, c) > 1 for c in paper_block(e.experiment)["columns"])
    }
    assert silent == {
        "fedfed.figure17",
        "fedfed.table12",
        "fedfed.table9",
    }  # one row a column, or no accuracy at all


def _printed(entry, column: str) -> int:
    return sum(
        value is not None
        for value in paper_block(entry.experiment)["columns"][column]["accuracy"].values()
    )


def test_data_that_do_not_come_with_privdd_are_named() -> None:
    """An entry that runs on stand-ins says which data the paper's own scale needs, and no other
    entry does."""
    for entry in RUNNING:
        paper = paper_block(entry.experiment)
        assert bool(entry.needs) == bool(paper["stand_in"] or paper["offline"]["note"]), entry.name
        assert ("needs" in describe_availability(entry)) == bool(entry.needs)


def test_a_mistyped_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadConfig, match=r"did you mean fedrd\.table1\?"):
        find_entry("fedrd.tabel1")
    with pytest.raises(BadConfig, match="reproduce list"):
        find_entry("xyz")


def test_the_page_of_results_counts_them_as_they_are() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = "\n".join(
        p.read_text(encoding="utf-8")
        for p in (docs / "reproduction.md", *docs.glob("data/reproduction-*.csv"))
    )
    assert f"{len(ENTRIES)} entries, of which {len(RUNNING)} run here" in " ".join(text.split())
    named = {*re.findall(r"privdd\.reproduce ((?:feddm|fedrd|fedfed|fedlgd)\.\w+)", text)}
    assert named and all(find_entry(name).is_trainable for name in named)

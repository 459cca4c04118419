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
    ACCURACY,
    NOTHING_TO_RUN,
    OUT_OF_REACH,
    RUNS_HERE,
    SCALES,
    SHOWN_ELSEWHERE,
    SPEED,
    Sentence,
    find_entry,
    load_catalogue,
    paper_details,
    scale_overrides,
)
from privdd.reproduce.catalogue_table import describe_availability
from privdd.reproduce.train import merge_overrides, paper_cells

ENTRIES = list(load_catalogue().values())
RUNNING = [entry for entry in ENTRIES if entry.is_trainable]


# What each paper has: tables, figures.
PRINTED = {"feddm": (4, 5), "fedrd": (4, 5), "fedfed": (17, 17), "fedlgd": (9, 20)}


@pytest.mark.parametrize("paper", sorted(PRINTED))
def test_every_table_and_figure_of_a_paper_is_an_entry(paper: str) -> None:
    named = {entry.name.rstrip("abcd") for entry in ENTRIES if entry.paper == paper}
    tables, figures = PRINTED[paper]
    printed = {f"{paper}.table{number}" for number in range(1, tables + 1)}
    printed |= {f"{paper}.figure{number}" for number in range(1, figures + 1)}
    assert named == printed


def test_every_experiment_is_reached_and_every_entry_resolves() -> None:
    assert {entry.experiment for entry in RUNNING} == {*group_choices("experiment", [config_dir()])}
    for entry in ENTRIES:
        assert re.fullmatch(r"(feddm|fedrd|fedfed|fedlgd)\.(table|figure)\d+[abcd]?", entry.name)
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


NUMBERS = {"both": 2, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}


def test_a_sentence_has_a_pair_for_each_comparison_that_it_makes() -> None:
    """As many pairs as it names, of different rows; a number in its words divides them. "All five
    methods" of a leader are the rows of its column."""
    for entry in ENTRIES:
        assert len({one.says for one in entry.sentences}) == len(entry.sentences)
        for one in entry.sentences:
            words = {*re.findall(r"[a-z]+", one.says.lower())}
            numbers = [number for word, number in NUMBERS.items() if word in words]
            assert one.by in (ACCURACY, SPEED)
            if one.best:
                assert not one.names and not one.ahead
                continue
            assert one.names == len(one.ahead) == len({*one.ahead}) > 0, (entry.name, one.says)
            assert all(better != worse for better, worse in one.ahead)
            assert all(one.names % number == 0 for number in numbers), (entry.name, one.says)
            compared = {row for pair in one.ahead for row in pair}
            assert not one.over or {*one.bases} == compared, (entry.name, one.says)


def test_a_sentence_about_gains_needs_the_rows_that_they_are_over() -> None:
    one = Sentence("a gains more than b", 1, (("a", "b"),), over=(("a", "c"), ("b", "d")))
    assert one.compared_rows(one.pairs_among([*"abcd"])) == ["a", "b", "c", "d"]
    assert one.pairs_among([*"abc"]) == []


def test_a_leader_is_compared_with_every_other_row_of_its_column() -> None:
    entry = find_entry("fedrd.table1")
    leader, both = entry.sentences
    rows = [*paper_block(entry.experiment)["columns"]["CIFAR10"]["accuracy"]]
    pairs = leader.pairs_among(rows)
    assert {worse for _, worse in pairs} == {*rows} - {"algo=fedrd algo.dpc=30"}
    assert {better for better, _ in pairs} == {"algo=fedrd algo.dpc=30"} and len(pairs) == 4
    assert both.pairs_among(rows) == []  # it names rows that this column has not
    still = "algo=fedrd algo.matching.iterations=0"  # the leader itself, with nothing matched
    columns = paper_block(entry.experiment)["columns"]
    assert still in columns["F-MNIST"]["accuracy"]
    found = leader.pairs_among([*columns["F-MNIST"]["accuracy"]])
    assert len(found) == 4 and all(worse != still for _, worse in found)


def test_every_sentence_is_about_a_column_that_is_trained() -> None:
    for entry in ENTRIES:
        cells = paper_cells(entry, "small") if entry.sentences else []
        columns = {cell.column: [] for cell in cells}
        for cell in cells:
            columns[cell.column].append(cell.row)
        for one in entry.sentences:
            assert any(one.pairs_among(rows) for rows in columns.values()), (entry.name, one.says)


# One row a column, or no order of accuracies in the paper's words.
SILENT = {
    "feddm.figure1",
    "fedrd.figure3",
    "fedfed.table6",
    "fedfed.figure17",
    "fedfed.table12",
    "fedfed.table9",
    "fedlgd.figure1",
    "fedlgd.figure4",
    "fedlgd.figure15",
}


def test_entries_without_a_sentence_are_known() -> None:
    assert {entry.name for entry in RUNNING if not entry.sentences} == SILENT


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

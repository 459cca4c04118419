"""The table of verdicts is read and written as it is, results replace their own columns, the page
counts what the table has, and every p follows from the accuracies by seed that are stored."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.distillation import HEADER, NO_BOUND, PRESETS, PROFILES, merge_table
from benchmarks.reproduction import (
    SeedAccuracy,
    collect_seeds,
    describe_counts,
    mark_stale,
    merge_lines,
    seed_table,
    summarise_sentences,
    verdict_table,
    write_sections,
)
from privdd.cli.paper_block import paper_block
from privdd.cli.sweeps import short_digest
from privdd.reproduce.catalogue import SPEED, Sentence, find_entry, load_catalogue
from privdd.reproduce.figures import row_label
from privdd.reproduce.page import (
    DECIDING,
    HOLDS_HERE,
    NOT_DECIDED,
    NOT_JUDGED,
    NOT_RUN_YET,
    OTHER_SETTINGS,
    STAND_IN,
    VERDICTS,
    OverviewLine,
    count_verdicts,
    current_digests,
    distinct_comparisons,
    format_sentence,
)
from privdd.reproduce.results import SAME_IMAGES
from privdd.reproduce.sentences import CANNOT_TELL, adjust_holm, p_value

PAGE = Path(__file__).parents[1] / "docs" / "reproduction.md"
TABLE = verdict_table(PAGE)
SEEDS = seed_table(PAGE)


def test_the_page_counts_its_table_and_names_commit_scale_and_steps() -> None:
    lines = TABLE.read()
    page = PAGE.read_text(encoding="utf-8")
    assert describe_counts(lines) in page
    assert {line.kind for line in lines} <= {*VERDICTS}
    assert count_verdicts([line for line in lines if line.verdict in DECIDING]) in page
    assert summarise_sentences(lines) in page
    running = {name for name, entry in load_catalogue().items() if entry.is_trainable}
    assert {line.entry for line in lines} == running
    for line in lines:
        if line.verdict == NOT_RUN_YET:
            continue
        assert "scale=" in line.made and "commit " in line.made, line
        assert line.settings or line.verdict == NOT_JUDGED, line
        steps = "T = " in line.made or "phase A" in line.made
        assert steps or line.entry == "fedrd.figure1", line
        assert (
            line.verdict != CANNOT_TELL
            or "images" in line.detail
            or "chance" in line.detail
            or "same" in line.detail
        )


def test_it_is_written_as_it_was_read(tmp_path: Path) -> None:
    copied_page = tmp_path / "page.md"
    copy = verdict_table(copied_page)
    sections = "<!-- counted -->\nearlier counts\n<!-- end -->\n<!-- sentences -->\n\n<!-- end -->"
    copied_page.write_text(f"before\n{sections}\nafter\n")
    copy.write(TABLE.read())
    write_sections(copied_page, TABLE.read())
    assert copy.file.read_bytes() == TABLE.file.read_bytes()
    assert (
        describe_counts(TABLE.read()) in copied_page.read_text()
        and "earlier counts" not in copied_page.read_text()
    )
    copied_page.write_text("no place")
    with pytest.raises(ValueError, match="counted"):
        write_sections(copied_page, TABLE.read())


def test_new_lines_take_the_place_of_their_entry_and_old_settings_are_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [line for line in TABLE.read() if line.entry == "feddm.table2"]
    today = current_digests(load_catalogue()["feddm.table2"], "small", "cpu")
    (column, says), digests = next(iter(today.items()))
    fresh = replace(
        lines[0],
        column=f"{column}{STAND_IN}",
        statement=says,
        verdict="holds",
        detail="new",
        settings=digests.settings,
        code=digests.code,
    )
    assert merge_lines(lines, [fresh]) == [fresh]
    old = replace(fresh, settings="00000000")
    assert [line.stale for line in mark_stale([fresh, old])] == ["", OTHER_SETTINGS]
    assert "settings and code: 1/1, done" in capsys.readouterr().err


def test_the_table_of_distillations_has_every_profile_and_rows_that_match_nothing() -> None:
    rows = read_distillations()
    assert {*rows[0]} == {*HEADER}
    named = {(row["profile or row"], row["at"]) for row in rows}
    assert named >= {(name, f"preset={preset}") for name in PROFILES for preset in PRESETS}
    still = [row for row in rows if row["steps"] == "T = 0"]
    assert still and all(float(row["moved, %"]) == 0 for row in still)
    assert all(row["moved, %"] or row["at the bound, %"] for row in rows)
    unbounded = {row["profile or row"] for row in rows if row["at the bound, %"] == NO_BOUND}
    assert unbounded == {"fedfed_released", "fedfed_flbench"}


def test_distillations_measured_again_take_their_own_places_alone() -> None:
    lines = [[*row.values()] for row in read_distillations()]
    again = [[*lines[3][:2], "measured again"]]
    assert merge_table(lines, []) == lines
    assert merge_table(lines, again) == [*lines[:3], *again, *lines[4:]]


def compared_by(line: OverviewLine) -> tuple[Sentence, list[str]]:
    """The sentence of a line, and the rows that decide it."""
    entry = find_entry(line.entry)
    sentence = next(one for one in entry.sentences if one.says == line.statement)
    column = line.column.removesuffix(STAND_IN)
    columns = paper_block(entry.experiment)["columns"]
    pairs = sentence.pairs_among([*columns[column]["accuracy"]])
    return sentence, sentence.compared_rows(pairs)


def read_distillations() -> list[dict[str, str]]:
    text = (TABLE.file.parent / "reproduction-distillation.csv").read_text(encoding="utf-8")
    return [*csv.DictReader(io.StringIO(text))]


def test_nothing_is_decided_on_rows_that_matching_does_not_move() -> None:
    """Verdicts of earlier trainings follow the rule of the page too."""
    percents = {
        (row["at"], row["profile or row"], row["steps"]): float(row["moved, %"])
        for row in read_distillations()
        if row["moved, %"]
    }
    compared = 0
    for line in TABLE.read():
        if line.verdict not in (HOLDS_HERE, NOT_DECIDED):
            continue
        place = f"{line.entry}, {line.column.removesuffix(STAND_IN)}"
        steps = line.made.partition("; scale=")[0].split("; ")
        for row in compared_by(line)[1]:
            for count in steps:
                percent = percents.get((place, row_label(row), count), 0.0)
                compared += percent > 0
                assert not 0 < percent < 100 * SAME_IMAGES, (place, row)
    assert compared


def values_of(line: OverviewLine, sentence: Sentence, row: str) -> list[float]:
    """By seed, from the stored table alone."""
    column = line.column.removesuffix(STAND_IN)
    stored = [one for one in SEEDS.read() if (one.entry, one.column) == (line.entry, column)]
    return [one.speed if sentence.by == SPEED else one.accuracy for one in stored if one.row == row]


def pairs_again(line: OverviewLine, sentence: Sentence) -> list[Mapping[str, object]]:
    """Each pair with its gain and its p, worked out again."""
    rows = compared_by(line)[1]
    values = {row: np.array(values_of(line, sentence, row)) for row in rows}
    gains = {row: values[row] - values[base] for row, base in sentence.bases.items()}
    values |= gains
    pairs = sentence.pairs_among(rows)
    chances = [p_value(values[better], values[worse]) for better, worse in pairs]
    return [
        {
            "better": better,
            "worse": worse,
            "gain": float(values[better].mean() - values[worse].mean()),
            "p": p,
            "holm": holm,
            "limit": "",
        }
        for (better, worse), p, holm in zip(pairs, chances, adjust_holm(chances), strict=True)
    ]


def test_every_p_and_every_digest_follows_from_the_accuracies_by_seed() -> None:
    """Of the lines whose code was recorded; the others have no accuracies by seed."""
    for line in TABLE.read():
        if line.verdict not in DECIDING or not line.code:
            continue
        sentence, rows = compared_by(line)
        told = {"pairs": pairs_again(line, sentence), "over": sentence.over}
        assert line.detail.startswith(format_sentence(told)), line
        column = line.column.removesuffix(STAND_IN)
        codes = {
            one.code
            for one in SEEDS.read()
            if (one.entry, one.column) == (line.entry, column) and one.row in rows
        }
        assert line.code == short_digest(codes), line


def seed_rows(*names: str) -> list[SeedAccuracy]:
    return [
        SeedAccuracy(name, "c", "algo=fedavg", seed, 0.1 + seed / 3, 0.05, "0123abcd")
        for name in names
        for seed in (0, 1)
    ]


def test_accuracies_by_seed_are_read_as_they_were_written(tmp_path: Path) -> None:
    table = seed_table(tmp_path / "page.md")
    assert table.read() == []
    rows = seed_rows("feddm.table2", "fedfed.table2")
    table.write(rows)
    assert table.read() == rows
    again = [replace(row, accuracy=0.5) for row in rows[:1]]
    assert merge_lines(rows, again) == [*again, *rows[2:]]


def test_accuracies_by_seed_are_collected_from_what_is_finished(tmp_path: Path) -> None:
    row = {
        "row": "algo=fedavg",
        "by_seed": {"10": 0.5, "11": 0.25},
        "speed_by_seed": {"10": 0.4, "11": 0.2},
        "codes": ["0123abcd"],
    }
    (tmp_path / "feddm.table2").mkdir()
    result = {"columns": [{"column": "c", "rows": [row]}]}
    (tmp_path / "feddm.table2" / "results.json").write_text(json.dumps(result))
    expected = [
        SeedAccuracy("feddm.table2", "c", "algo=fedavg", 10, 0.5, 0.4, "0123abcd"),
        SeedAccuracy("feddm.table2", "c", "algo=fedavg", 11, 0.25, 0.2, "0123abcd"),
    ]
    assert collect_seeds(tmp_path) == expected


def test_two_sentences_about_one_comparison_count_once() -> None:
    """FedLGD's table 1 and figure 10 compare the same trainings in the same way."""
    names = ("fedlgd.table1", "fedlgd.figure10")
    lines = [line for line in TABLE.read() if line.entry in names and line.verdict in DECIDING]
    digests = {line.settings for line in lines}
    assert len(distinct_comparisons(lines)) == len(digests) < len(lines)
    assert count_verdicts(lines).endswith(f": {len(digests)}")

"""The table of verdicts is read and written as it is, results replace their own columns, and the
page counts what the table has."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.distillation import HEADER, PRESETS, PROFILES
from benchmarks.reproduction import (
    VerdictTable,
    describe_counts,
    mark_stale,
    merge_lines,
    summarise_sentences,
)
from privdd.reproduce.catalogue import load_catalogue
from privdd.reproduce.page import (
    DECIDING,
    NOT_RUN_YET,
    OTHER_SETTINGS,
    STAND_IN,
    VERDICTS,
    count_verdicts,
    current_digests,
)
from privdd.reproduce.sentences import CANNOT_TELL

TABLE = VerdictTable(Path(__file__).parents[1] / "docs" / "reproduction.md")


def test_the_page_counts_its_table_and_names_commit_scale_and_steps() -> None:
    lines = TABLE.read()
    page = TABLE.page.read_text(encoding="utf-8")
    assert describe_counts(lines) in page
    assert {line.kind for line in lines} <= {*VERDICTS}
    assert count_verdicts([line for line in lines if line.verdict in DECIDING]) in page
    assert summarise_sentences(lines) in page
    running = {name for name, entry in load_catalogue().items() if entry.is_trainable}
    assert {line.entry for line in lines} == running
    for line in lines:
        if line.verdict == NOT_RUN_YET:
            continue
        assert "scale=" in line.made and "commit " in line.made and line.settings, line
        steps = "T = " in line.made or "phase A" in line.made
        assert steps or line.entry == "fedrd.figure1", line
        assert (
            line.verdict != CANNOT_TELL
            or "images" in line.detail
            or "chance" in line.detail
            or "same" in line.detail
        )


def test_it_is_written_as_it_was_read(tmp_path: Path) -> None:
    copy = VerdictTable(tmp_path / "page.md")
    sections = "<!-- counted -->\nearlier counts\n<!-- end -->\n<!-- sentences -->\n\n<!-- end -->"
    copy.page.write_text(f"before\n{sections}\nafter\n")
    copy.write(TABLE.read())
    assert copy.file.read_bytes() == TABLE.file.read_bytes()
    assert (
        describe_counts(TABLE.read()) in copy.page.read_text()
        and "earlier counts" not in copy.page.read_text()
    )
    copy.page.write_text("no place")
    with pytest.raises(ValueError, match="counted"):
        copy.write(TABLE.read())


def test_new_lines_take_the_place_of_their_entry_and_old_settings_are_marked() -> None:
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


def test_the_table_of_distillations_has_every_profile_and_rows_that_match_nothing() -> None:
    text = (TABLE.file.parent / "reproduction-distillation.csv").read_text(encoding="utf-8")
    rows = [*csv.DictReader(io.StringIO(text))]
    assert {*rows[0]} == {*HEADER}
    named = {(row["profile or row"], row["at"]) for row in rows}
    assert named >= {(name, f"preset={preset}") for name in PROFILES for preset in PRESETS}
    still = [row for row in rows if row["steps"] == "T = 0"]
    assert still and all(float(row["moved, %"]) == 0 for row in still)
    assert all(row["moved, %"] or row["at rho, %"] for row in rows)

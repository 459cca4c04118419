"""The table of verdicts is read and written as it is, results replace their own columns, and the
page counts what the table has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.reproduction import VerdictTable, describe_counts, mark_stale, merge_lines
from privdd.reproduce.catalogue import load_catalogue
from privdd.reproduce.page import STALE, VERDICTS, current_digests
from privdd.reproduce.results import CANNOT_TELL

TABLE = VerdictTable(Path(__file__).parents[1] / "docs" / "reproduction.md")


def test_the_page_counts_its_table_and_names_commit_scale_and_steps() -> None:
    lines = TABLE.read()
    page = TABLE.page.read_text(encoding="utf-8")
    assert describe_counts(lines) in page
    counts = Counter(line.verdict for line in lines)
    assert {*counts} <= {*VERDICTS} and all(
        f"{kind}: {count}" in page for kind, count in counts.items()
    )
    running = {name for name, entry in load_catalogue().items() if entry.is_trainable}
    assert {line.entry for line in lines} == running
    for line in lines:
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
    copy.page.write_text("before\n<!-- counted -->\nearlier counts\n<!-- end -->\nafter\n")
    copy.write(TABLE.read())
    assert copy.file.read_bytes() == TABLE.file.read_bytes()
    assert (
        describe_counts(TABLE.read()) in copy.page.read_text()
        and "earlier counts" not in copy.page.read_text()
    )
    copy.page.write_text("no place")
    with pytest.raises(ValueError, match="counted"):
        copy.write(TABLE.read())


def test_new_columns_take_the_place_of_theirs_and_old_settings_are_marked() -> None:
    lines = [line for line in TABLE.read() if line.entry == "feddm.table2"]
    column = lines[0].column.removesuffix(" (on a stand-in)")
    fresh = replace(
        lines[0],
        verdict="holds",
        detail="new",
        settings=current_digests(load_catalogue()["feddm.table2"], "small", "cpu")[column][0],
    )
    merged = merge_lines(lines, [fresh])
    assert len(merged) == len(lines) and merged[0].detail == "new"
    old = replace(lines[1], settings="00000000")
    assert [line.stale for line in mark_stale([fresh, old])] == ["", STALE]

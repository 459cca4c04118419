"""The page of peers: a row that is lost says so, one that could not be run gives its reason, and
the counts are those of the table."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import (
    HEADINGS,
    PEERS,
    ROWS,
    Comparison,
    cost,
    judge_bounds,
    page,
    run_row,
    verdict,
)

PAGE = Path(__file__).parents[1] / "docs" / "peers.md"
LINE = Comparison("these inputs", "peer 1.0", "0.7", "0.6", 0.1, 0.05, (1.0, 2.0))


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (0.1, "ahead"),
        (0.05, "not distinguished"),
        (-0.05, "not distinguished"),
        (-0.06, "**lost**"),
        (None, "not compared"),
    ],
)
def test_the_result_is_decided_by_gain_and_margin(gain: float | None, said: str) -> None:
    assert verdict(replace(LINE, gain=gain)) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((1, 2), "ahead, 0.5"),
        ((1.2, 1), "**lost**, 1.2"),
        ((1.04, 1), "alike, 1"),
        ((1, 1.05), "alike, 0.95"),
    ],
)
def test_a_cost_within_a_tenth_is_alike(seconds: tuple[float, float], said: str) -> None:
    assert cost(replace(LINE, seconds=seconds)) == f"{said} times its time"


def test_a_lost_row_and_one_that_could_not_be_run_stand_on_the_page_as_such() -> None:
    lost = replace(LINE, gain=-0.1, seconds=(4.0, 2.0))
    text = page(
        {"lira_sacroml": [LINE, lost], "rmia_meter": "ModuleNotFoundError: No module | named x\n"}
    )
    assert (
        "| these inputs | 0.7 | 4 | peer 1.0 | 0.6 | 2 | **lost** | **lost**, 2 times its time |"
        in text
    )
    assert (
        "| | | | privacy-meter | could not be run here: ModuleNotFoundError: No module / "
        "named x | | not run | |" in text
    )
    summary = " ".join(text.split())
    assert "Of 2 lines privdd's result is ahead in 1," in summary
    assert "lost in 1 and" in summary
    assert "takes more time in 1." in summary
    assert text.count("\n## ") == 1 and "1 peer could not be run" in summary


def test_a_tool_above_the_truth_too_often_loses_whatever_its_mean() -> None:
    sound = np.zeros(100)
    faulty = np.where(np.arange(100) < 30, 3.0, 0.0)
    for values, said in (
        (np.stack([sound, faulty], 1), "ahead"),
        (np.stack([faulty, sound], 1), "**lost**"),
        (np.stack([faulty] * 2, 1), "not distinguished"),
    ):
        assert verdict(judge_bounds("", "peer", "one_run", 1.0, values, (1.0, 1.0))) == said
    rare = np.where(np.arange(100) < 5, 3.0, 0.5)  # 5 of 100 is what 95 % allows
    assert (
        verdict(judge_bounds("", "peer", "one_run", 1.0, np.stack([sound, rare], 1), (1.0, 1.0)))
        == "**lost**"
    )


def test_a_peer_that_is_not_there_is_a_reason(tmp_path: Path) -> None:
    assert run_row("check_auditorium", tmp_path) == "not installed: see --install"
    (tmp_path / "dp-auditorium").mkdir()
    (tmp_path / "dp-auditorium" / "failure.txt").write_text("No matching distribution")
    assert run_row("check_auditorium", tmp_path) == "No matching distribution"


def test_rows_name_headings_and_peers_and_the_kept_page_counts_its_table() -> None:
    assert all(
        heading in HEADINGS and (folder is None or folder in PEERS)
        for heading, folder, _ in ROWS.values()
    )
    text = PAGE.read_text(encoding="utf-8")
    rows = [
        line.strip("|").split("|")
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith("| inputs")
    ]
    results = [cells[6].strip() for cells in rows]
    total, ahead, level, lost, other, slower = map(
        int, re.findall(r"\d+", text[text.index("Of ") :])[:6]
    )
    assert (ahead, level, lost, other) == tuple(
        map(results.count, ("ahead", "not distinguished", "**lost**", "not compared"))
    )
    assert total == ahead + level + lost + other and slower == sum(
        "**lost**" in cells[7] for cells in rows
    )
    assert (
        sum(cells[4].strip().startswith("could not be run here: ") for cells in rows)
        == results.count("not run")
        == len(rows) - total
    )

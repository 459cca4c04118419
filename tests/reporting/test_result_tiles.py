"""The tiles of a report's first screen: one result, and the sentence of its artifact and attack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privdd.reporting.figures.epsilon_strip import StripRow, draw_epsilon_scale
from privdd.reporting.page import write_report
from privdd.reporting.result_tiles import CHANCE, membership_tile, reconstruction_tile
from privdd.reporting.schema import FindingRow, Findings
from tests.reporting.test_decision import NOTHING, STRONG, row, run
from tests.reporting.test_finding_selection import pictured

WIDE = {"auc": 0.9, "auc_ci": [0.85, 0.95]}


def found(*rows: dict[str, Any] | FindingRow) -> Findings:
    plain = [
        one.model_dump(exclude_none=True) | {"surface": "features"}
        if isinstance(one, FindingRow)
        else one
        for one in rows
    ]
    return run(plain, "unprotected", "inf")


@pytest.mark.parametrize(
    ("rows", "number", "is_number", "ends"),
    [
        ([], "–", True, "No sample large enough."),
        ([row(STRONG)], "50 %", True, "LiRA, 0.1 % FPR."),
        ([row(NOTHING)], CHANCE, False, "LiRA, 0.1 % FPR."),
        ([row(NOTHING, **WIDE)], "AUC 90 %", False, "LiRA."),
        ([row(None, status="nothing_to_read", note="x")], "–", True, "No attack has a rate."),
    ],
)
def test_the_membership_tile(rows: list[Any], number: str, is_number: bool, ends: str) -> None:
    tile = membership_tile(found(*rows))
    assert (tile.number.replace("\u00a0", " "), tile.is_number) == (number, is_number)
    assert tile.text.replace("\u00a0", " ").endswith(ends)
    assert tile.has_result is (number != "–")


@pytest.mark.parametrize(
    ("rows", "number", "is_number", "says"),
    [
        ([], "–", True, "No attack tried to reconstruct images."),
        ([pictured(12, 100, 0.01)], "12 of 100", True, "can reconstruct 12 of 100 images"),
        (
            [pictured(1, 4, 0.01, 0.03)],
            "1 of 4, too few to distinguish from chance",
            False,
            "1 of 4 clearly closer than every guess, median 10.0 dB (of the best guesses 12.0 dB)",
        ),
        ([pictured(0, 4, 0.01, 0.5)], CHANCE, False, "0 of 4 clearly closer than every guess"),
        ([pictured(0, 4, 0.01, 0.5, 12.5)], "12.5 dB", True, "can reconstruct images"),
    ],
)
def test_the_reconstruction_tile(rows: list[Any], number: str, is_number: bool, says: str) -> None:
    tile = reconstruction_tile(found(*rows), tabular=False)
    assert (tile.number.replace("\u00a0", " "), tile.is_number) == (number, is_number)
    assert says in tile.text.replace("\u00a0", " ")


def test_a_table_has_rows() -> None:
    tile = reconstruction_tile(found(pictured(12, 100, 0.01)), tabular=True)
    assert tile.title == "Rows reconstructed" and tile.text.endswith("number by number.")


def test_page_and_figure_call_the_upper_bound_by_one_word(runs: dict[str, Path]) -> None:
    """A bound that a test contradicts was stated, whatever the largest epsilon shown."""
    for kind, word in (("contradiction", "Stated"), ("consistent", "Proven")):
        text = write_report(runs[kind]).read_text(encoding="utf-8")
        assert f"<dt>{word} at most</dt>" in text
        (label,) = [part for part in text.split("Epsilon on a logarithmic scale")[1:]][:1]
        assert f"{word.lower()} at most" in label[:80]
    drawn = draw_epsilon_scale(StripRow("run", None, 2.0, 1.0), bound_word="stated")
    assert "stated ≤ 2" in {text.get_text() for text in drawn.axes[0].texts}

"""The tiles of a report's first screen: one result, and the sentence of its artifact and attack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privdd.reporting.figures.epsilon_strip import StripRow, draw_epsilon_scale
from privdd.reporting.page import write_report
from privdd.reporting.result_tiles import CHANCE, membership_tile, reconstruction_tile
from privdd.reporting.schema import FindingRow, Findings
from privdd.reporting.summary import unshown_sentences
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


COPIES = {
    "surface": "synthetic_images",
    "attack": "copy_detection",
    "family": "reconstruction",
    "adversary": "server",
    "n": 47,
    "psnr": 26.8,
    "pictures": {
        "n": 47,
        "median": 13.9,
        "guess": 14.3,
        "clear": 15,
        "best": 200.0,
        "best_guess": 10.8,
        "chance": 0.364,
    },
    "diagnostics": {
        "released": 47,
        "training": 281,
        "heldout": 101,
        "exact_copies": 7,
        "near_copies": 47,
        "near_copies_of_heldout": 1,
    },
}


def test_of_a_release_with_copies_nothing_says_that_none_was_shown() -> None:
    """15 of 47 images alone stand out from as many held-out records, which chance explains; against
    all held-out records, all 47 are copies."""
    copied = run([COPIES], "unprotected", "inf")
    tile = reconstruction_tile(copied, False)
    assert (tile.number, tile.is_number) == ("47 of 47", True)
    assert tile.text.endswith(
        "47 of 47 released images are copies (7 exact, the others near) of training images."
    )
    assert not [said for said in unshown_sentences(copied) if "copy detection" in said]
    few = {**COPIES["diagnostics"], "exact_copies": 0, "near_copies": 12}
    uncopied = run(
        [COPIES | {"diagnostics": few | {"near_copies_of_heldout": 4}}], "unprotected", "inf"
    )
    assert reconstruction_tile(uncopied, False).number == CHANCE
    assert [said for said in unshown_sentences(uncopied) if "copy detection" in said]

"""The one sentence about a column, its colour, and the status of the command."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privdd.reproduce import page
from privdd.reproduce.arguments import parse_arguments
from privdd.reproduce.page import _page_tone, column_headline, run_entry
from privdd.reproduce.results import HOLDS, HOLDS_IN_MEAN, REVERSED, REVERSED_IN_MEAN, OrderStatement, RowPair

PAIRS = {HOLDS: (0.2, 0.01), HOLDS_IN_MEAN: (0.2, 0.3), REVERSED_IN_MEAN: (-0.2, 0.7), REVERSED: (-0.2, 0.99)}


def column(leader: str = "", *said: str) -> Any:
    pairs = {kind: RowPair("algo=feddm", "algo=fedavg", *PAIRS[kind]) for kind in PAIRS}
    return SimpleNamespace(leader=OrderStatement((pairs[leader],)) if leader else None, said=tuple(("x", pairs[kind]) for kind in said))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (HOLDS, "holds (p 0.01)"), (HOLDS_IN_MEAN, "holds in the mean; the seeds do not decide it (p 0.3)"),
        (REVERSED_IN_MEAN, "fails in the mean; the seeds do not decide it (p 0.7)"), (REVERSED, "does not hold (p 0.99)"),
    ],
)  # fmt: skip
def test_each_verdict_in_words(kind: str, said: str) -> None:
    assert column_headline(column(kind)) == f"feddm ahead of all others: {said}"


def test_comparisons_of_the_text_are_counted_where_they_hold() -> None:
    assert column_headline(column("", HOLDS, HOLDS_IN_MEAN, REVERSED)) == "of 3 comparisons that the text makes, 1 hold"
    assert column_headline(column()) == "the paper prints no numbers to compare with"


@pytest.mark.parametrize(
    ("leaders", "tone"),
    [([HOLDS, HOLDS], "consistent"), ([HOLDS, HOLDS_IN_MEAN], "plain"), ([HOLDS, REVERSED], "contradiction"), ([REVERSED_IN_MEAN], "contradiction"), ([""], "plain")],
)
def test_a_page_is_green_only_where_all_holds(leaders: list[str], tone: str) -> None:
    assert _page_tone(SimpleNamespace(columns=[column(kind) for kind in leaders])) == tone  # type: ignore[arg-type]


@pytest.mark.parametrize("failed", [0, 2])
def test_the_status_is_1_where_a_training_failed(failed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = SimpleNamespace(entry=SimpleNamespace(name="feddm.table2"), columns=[])
    monkeypatch.setattr(page, "reproduce_entry", lambda entry, asked: (found, Path("page.html"), failed))
    assert run_entry(parse_arguments(["feddm.table2"])) == int(failed > 0)
    assert ("2 trainings failed" in capsys.readouterr().err) is bool(failed)

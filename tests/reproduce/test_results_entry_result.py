"""What a page says of an entry: rows without all their seeds take no part, and what went wrong is written down."""

from __future__ import annotations

from privdd.reproduce.catalogue import PaperEntry, StatedOrder
from privdd.reproduce.results import RowResult, TableColumn, _compare_column
from privdd.reproduce.train import PaperCell

ENTRY = PaperEntry("feddm.table4", "x", "feddm_table4", ahead=(StatedOrder("b", "c", "b beats c"), StatedOrder("a", "c", "a beats c")))


def row(name: str, printed: float, *ends: float, diverged: int = 0) -> RowResult:
    return RowResult(PaperCell("c", name, printed, ()), False, {seed: (end,) for seed, end in enumerate(ends)}, (8.0,), (4.0,), diverged=diverged)


def column(*rows: RowResult) -> TableColumn:
    return _compare_column(ENTRY, "c", rows, 2)


def test_a_row_without_all_its_seeds_is_not_compared() -> None:
    made = column(row("a", 90.0, 0.9, 0.8), row("b", 80.0, 0.7, 0.6), row("c", 70.0, 0.95))
    assert made.leader is not None and [pair.worse for pair in made.leader.pairs] == ["b"]
    assert made.said == () and made.tau is not None and made.tau[2] == 1
    whole = column(row("a", 90.0, 0.9, 0.8), row("b", 80.0, 0.7, 0.6), row("c", 70.0, 0.95, 0.9))
    assert [says for says, _ in whole.said] == ["b beats c", "a beats c"]


def test_seeds_without_a_model_are_written_down() -> None:
    (first, second) = column(row("a", 90.0, 0.9, 0.1, diverged=1), row("b", 80.0, 0.7, 0.6)).as_json()["rows"]
    assert (first["diverged"], second["diverged"]) == (1, 0) and first["by_seed"] == {"0": 0.9, "1": 0.1}

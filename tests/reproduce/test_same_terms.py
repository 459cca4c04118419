"""Rows on unequal terms are named with their reason at the scale that is run, and one without a reason is told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privdd.reproduce import results
from privdd.reproduce.catalogue import find_entry
from privdd.reproduce.results import UNSAID, find_uneven_rows
from privdd.reproduce.train import merge_overrides, paper_cells

ENTRY = find_entry("feddm.table2")
MADE = [cell for cell in paper_cells(ENTRY, "small") if cell.column == "MNIST, alpha 0.1"]


def test_what_a_scale_makes_unequal_is_said() -> None:
    """SCAFFOLD's rate at preset=smoke, and its momentum at every scale."""
    assert {(one.row, one.term) for one in find_uneven_rows(ENTRY, "small", MADE)} == {("algo=scaffold", "lr"), ("algo=scaffold", "momentum")}
    assert all(one.why != UNSAID for one in find_uneven_rows(ENTRY, "small", MADE))


def test_a_row_that_nobody_gave_a_reason_for_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = replace(MADE[0], overrides=merge_overrides(MADE[0].overrides, ["algo.rounds=50"]))
    found = {(one.row, one.term): one.why for one in find_uneven_rows(ENTRY, "small", [longer, *MADE[1:]])}
    assert found[("algo=fedavg", "rounds")] == UNSAID
    monkeypatch.setattr(results, "differences_at_scale", lambda scale: {})
    assert {one.term for one in find_uneven_rows(ENTRY, "small", MADE) if one.why == UNSAID} == {"lr"}

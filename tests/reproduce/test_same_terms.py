"""Rows on unequal terms are named with their reason at the scale that is run, and one without a reason is told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privdd.reproduce import fidelity_sheet
from privdd.reproduce.entries import find
from privdd.reproduce.fidelity_sheet import UNSAID, uneven
from privdd.reproduce.plan_rows import cells, merged

ENTRY = find("feddm.table2")
MADE = [cell for cell in cells(ENTRY, "small") if cell.column == "MNIST, alpha 0.1"]


def test_what_a_scale_makes_unequal_is_said() -> None:
    """SCAFFOLD's rate at preset=smoke, and its momentum at every scale."""
    assert {(one.row, one.term) for one in uneven(ENTRY, "small", MADE)} == {("algo=scaffold", "lr"), ("algo=scaffold", "momentum")}
    assert all(one.why != UNSAID for one in uneven(ENTRY, "small", MADE))


def test_a_row_that_nobody_gave_a_reason_for_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = replace(MADE[0], overrides=merged(MADE[0].overrides, ["algo.rounds=50"]))
    found = {(one.row, one.term): one.why for one in uneven(ENTRY, "small", [longer, *MADE[1:]])}
    assert found[("algo=fedavg", "rounds")] == UNSAID
    monkeypatch.setattr(fidelity_sheet, "differs_at", lambda scale: {})
    assert {one.term for one in uneven(ENTRY, "small", MADE) if one.why == UNSAID} == {"lr"}

"""The words about a distillation: what is sent if nothing was distilled, and the line beside it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from privdd.reporting.distillation_lines import (
    distillation_lines,
    is_undistilled,
    undistilled_marks,
)
from privdd.reporting.schema import DistillationRow


def row(**values: object) -> DistillationRow:
    return DistillationRow(client=4, round=0, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("moved", "before", "after", "undistilled"),
    [
        (0.0, 1.0, 1.0, True),
        (0.0002, 0.2443, 0.2430, True),
        (0.0077, 0.1491, 0.1231, False),
        (0.01, 1.0, 0.9, False),
        (0.01, 1.0, 0.91, True),
        (0.5, 1.0, 2.0, True),
    ],
)
def test_a_loss_that_fell_by_less_than_a_tenth_is_no_distillation(
    moved: float, before: float, after: float, undistilled: bool
) -> None:
    found = row(moved=moved, loss_before=before, loss_after=after)
    assert is_undistilled(found) == undistilled


def test_the_first_line_says_what_is_sent_instead() -> None:
    losses = {"moved": 0.0002, "loss_before": 0.2443, "loss_after": 0.243}
    cases = {
        "sends real records": {"starts_real": True, "projected": False},
        "sends projected real records": {"starts_real": True, "projected": True},
        "sends its start nearly as it was": {"starts_real": False, "projected": False},
    }
    for said, start in cases.items():
        (mark,) = undistilled_marks(SimpleNamespace(distillation=[row(**losses, **start)]))
        assert mark.startswith(f"{said}: matching moved") and "0.02 % of their norm" in mark
    assert undistilled_marks(SimpleNamespace(distillation=None)) == []


def test_a_line_gives_movement_losses_and_the_share_at_the_bound() -> None:
    (line,) = distillation_lines(SimpleNamespace(distillation=[row(at_bound=0.97)]))
    assert line == (
        "Distillation of client 4: 97 % of its features lie at the bound rho, so that they are "
        "scaled copies of records."
    )
    (line,) = distillation_lines(SimpleNamespace(distillation=[row(at_bound=0.5)]))
    assert "scaled" not in line

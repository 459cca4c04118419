"""The null benchmark: coins dealt again say nothing of the signals, a leak that follows the coins
is counted as broken."""

from dataclasses import replace

import torch

from attacks.types import Surface
from tests.power.membership import attacks
from tests.power.nulls import Null, null, with_fresh_coins
from tests.power.planted_leaks import planted


def test_a_leak_is_no_leak_for_fresh_coins() -> None:
    view = planted(Surface.UPDATE, 0)
    fresh = with_fresh_coins(view, 3)
    assert (
        fresh.worlds is not None
        and view.worlds is not None
        and fresh.worlds.signals is view.worlds.signals
    )
    assert abs(float((fresh.worlds.masks == view.worlds.masks).double().mean()) - 0.5) < 0.06
    assert torch.equal(fresh.worlds.masks, with_fresh_coins(view, 3).worlds.masks)  # type: ignore[union-attr]
    row = null("run", view, "lira", attacks()["lira"], 20)
    assert row is not None and row.held >= 17 and not row.broken and abs(row.mean - 0.5) < 0.03


def test_intervals_that_are_too_narrow_are_called_broken() -> None:
    row = Null("run", Surface.UPDATE, "lira", 95, 5, 100, 0.5)
    assert not row.broken and not replace(row, held=88).broken and replace(row, held=86).broken


def test_a_surface_with_nothing_to_read_has_no_row() -> None:
    assert null("run", planted(Surface.COUNTS, 0), "lira", attacks()["lira"], 2) is None

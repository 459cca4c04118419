"""A record whose row was solved for is said, however few rows there are."""

from __future__ import annotations

import pytest

from privdd.reporting.leaks import rank_leaks
from privdd.reporting.schema import FindingRow, Scope


@pytest.mark.parametrize(("error", "shown"), [(1e-7, True), (0.4, False)])
def test_one_row_is_a_leak_if_it_is_a_records_own(error: float, shown: bool) -> None:
    """One hit of one by a chance of 2 % is no rate above chance, at 95 % for 20 looks."""
    row = FindingRow.model_validate(
        {
            "surface": "prototypes",
            "attack": "class_opening",
            "family": "reconstruction",
            "adversary": "server",
            "n": 1,
            "identified": 1.0,
            "identified_chance": 0.02,
            "diagnostics": {"classes": [3], "sizes": [1], "errors": [error]},
        }
    )
    leaks = rank_leaks([row], Scope(looks=20))
    assert bool(leaks) is shown
    if shown:
        assert leaks[0].sentence == (
            "The server can solve for the row of 1 training record, exactly: classes of at most "
            "three records"
        )

"""Which claim the page puts first, when a measure exceeds it, and which attacks measure it."""

from __future__ import annotations

from typing import Any

import pytest

from privdd.reporting.schema import FindingRow
from privdd.reporting.schema_privacy import ClaimRow
from privdd.reporting.strongest import boldest, exceeded, measures_of


def claim(epsilon: Any, **more: Any) -> ClaimRow:
    return ClaimRow(source="s", epsilon=epsilon, sound=False, why="w", **more)


def test_no_number_is_passed_over() -> None:
    assert claim("no number").number is None and claim("inf").number == float("inf")
    found = boldest([claim("no number"), claim(2.0), claim(1.0)])
    assert found is not None and found.number == 1.0
    assert boldest([claim("no number")]) is None
    with pytest.raises(ValueError):
        claim("some number")


def test_a_measure_exceeds_only_a_claim_of_the_same_delta_or_less() -> None:
    assert exceeded(claim(1.0), 2.0, 1e-5) and exceeded(claim(1.0, delta=1e-5), 2.0, 1e-5)
    assert exceeded(claim(1.0, delta=1e-6), 2.0, 1e-5)
    assert not exceeded(claim(1.0, delta=1e-3), 2.0, 1e-5)  # more may fail there: not the same statement
    assert not exceeded(claim(3.0), 2.0, 1e-5) and not exceeded(claim("no number"), 2.0, 1e-5)
    assert not exceeded(None, 2.0, 1e-5) and not exceeded(claim(1.0), None, 1e-5)


def test_only_attacks_that_measured_something_stand_by_a_claim() -> None:
    def row(attack: str, **more: Any) -> FindingRow:
        head = {"surface": "update", "family": "membership", "adversary": "server"}
        return FindingRow(attack=attack, **head, **more)

    rows = [row("lira", auc=0.7), row("lira", note="nothing to read"), row("rmia", auc=0.6)]
    assert measures_of(claim("no number", tested_by=["lira", "copy_detection"]), rows) == rows[:1]

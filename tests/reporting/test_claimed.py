"""Which claim the page puts first, when a measure exceeds it, and which attacks measure it."""

from __future__ import annotations

from typing import Any

import pytest

from privdd.reporting.finding_selection import boldest_claim, exceeds_claim, findings_measuring_claim
from privdd.reporting.schema import ClaimRow, FindingRow


def claim(epsilon: Any, **more: Any) -> ClaimRow:
    return ClaimRow(source="s", epsilon=epsilon, sound=False, why="w", **more)


def test_no_number_is_passed_over() -> None:
    assert claim("no number").number is None and claim("inf").number == float("inf")
    found = boldest_claim([claim("no number"), claim(2.0), claim(1.0)])
    assert found is not None and found.number == 1.0
    assert boldest_claim([claim("no number")]) is None
    with pytest.raises(ValueError):
        claim("some number")


def test_a_measure_exceeds_only_a_claim_of_the_same_delta_or_less() -> None:
    assert exceeds_claim(claim(1.0), 2.0, 1e-5) and exceeds_claim(claim(1.0, delta=1e-5), 2.0, 1e-5)
    assert exceeds_claim(claim(1.0, delta=1e-6), 2.0, 1e-5)
    assert not exceeds_claim(claim(1.0, delta=1e-3), 2.0, 1e-5)  # more may fail there: not the same statement
    assert not exceeds_claim(claim(3.0), 2.0, 1e-5) and not exceeds_claim(claim("no number"), 2.0, 1e-5)
    assert not exceeds_claim(None, 2.0, 1e-5) and not exceeds_claim(claim(1.0), None, 1e-5)


def test_only_attacks_that_measured_something_stand_by_a_claim() -> None:
    def row(attack: str, **more: Any) -> FindingRow:
        head = {"surface": "update", "family": "membership", "adversary": "server"}
        return FindingRow(attack=attack, **head, **more)

    rows = [row("lira", auc=0.7), row("lira", note="nothing to read"), row("rmia", auc=0.6)]
    assert findings_measuring_claim(claim("no number", tested_by=["lira", "copy_detection"]), rows) == rows[:1]

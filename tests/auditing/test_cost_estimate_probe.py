"""What was measured on a small audit is scaled to the sizes of the whole run."""

from __future__ import annotations

import pytest

from privdd.auditing.cost_estimate import count_client_rounds, count_replayed_rounds, extrapolate_length
from tests.federations import tiny, trained


def test_a_search_costs_what_two_short_ones_say() -> None:
    assert extrapolate_length(1.5, 2.0, 10, 20, 100) == pytest.approx(1 + 0.05 * 100)
    assert extrapolate_length(2.0, 1.9, 10, 20, 100) == 2.0  # no shorter for being longer


@pytest.mark.parametrize("algo", ["fedavg", "fedfed", "feddm"])
def test_rounds_are_those_that_training_really_takes(algo: str) -> None:
    plan, (progress, inboxes, _) = tiny(algo).plan, trained(algo)
    assert count_client_rounds(plan) == len({(r.round, r.client) for r in inboxes})
    phases = {s.phase for s in progress.snapshots.values()}
    assert count_replayed_rounds(plan, 1) == len(phases) and count_replayed_rounds(plan, 99) == len(progress.snapshots)

"""Planted faults of clipping do what their words say, and nothing else."""

from __future__ import annotations

import pytest
import torch

from privdd.privacy import clipping
from privdd.selftest_faults.fault import FaultMoment, FaultScope
from privdd.selftest_faults.mechanism_faults import CLIP_KINDS

CLIP_NORM = 1.0


def faulty_factors(kind: str, norms: list[float]) -> list[float]:
    moment = FaultMoment(FaultScope())
    with CLIP_KINDS[kind].plant(moment)():
        factors = clipping.clip_factors(torch.tensor(norms), CLIP_NORM)
    assert moment.touched == len(norms)
    return factors.tolist()


# norms 0.5 and 4 at a clip norm of 1, of three records: min(1, 2 / 4), min(1, 3 / 4)
@pytest.mark.parametrize(
    "kind, long_factor", [("missing", 1.0), ("double", 0.5), ("by_count", 0.75)]
)
def test_records_are_scaled_as_the_fault_says_and_infinite_ones_left_out(
    kind: str, long_factor: float
) -> None:
    """Honest clipping leaves out a record whose norm is infinite. So does the faulty one: else the
    sum is no number, and what is caught is not the fault that was meant."""
    assert faulty_factors(kind, [0.5, 4.0, float("inf")]) == [1.0, long_factor, 0.0]


def test_all_records_are_scaled_by_the_mean_of_their_norms() -> None:
    assert faulty_factors("by_mean_norm", [1.0, 7.0]) == [0.25, 0.25]
    assert faulty_factors("by_mean_norm", [0.2, 0.4]) == [1.0, 1.0]


def test_nothing_is_changed_where_the_fault_is_not_in_force() -> None:
    moment = FaultMoment(FaultScope(client="other"))
    norms = torch.tensor([0.5, 4.0])
    honest = clipping.clip_factors(norms, CLIP_NORM)
    with CLIP_KINDS["double"].plant(moment)():
        factors = clipping.clip_factors(norms, CLIP_NORM)
    assert torch.equal(factors, honest) and moment.touched == 0

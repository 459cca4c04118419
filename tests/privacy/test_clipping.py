"""Clipping by hand: one norm across all tensors, one factor a record, and rows that are no
numbers."""

from __future__ import annotations

import math

import pytest
import torch

from privdd.privacy.clipping import (
    SAFE,
    RecordLayout,
    as_rows,
    clip_factors,
    clipped_sum,
    record_norms,
    require_positive,
)
from privdd.privacy.lattice import Lattice

FINE = Lattice(2.0**-24, 2.0**-24)


def contributions(records: int = 5) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    sizes = {"matrix": (4, 3), "vector": (6,), "number": ()}
    return {name: 3 * torch.randn(records, *size, generator=g) for name, size in sizes.items()}


@pytest.mark.parametrize("order", [1, 2])
def test_a_records_norm_is_that_of_all_its_numbers(order: int) -> None:
    given = contributions()
    for i, norm in enumerate(record_norms(given, order)):
        numbers = [v for tensor in given.values() for v in tensor[i].flatten().tolist()]
        assert float(norm) == pytest.approx(
            sum(abs(v) ** order for v in numbers) ** (1 / order), rel=1e-6
        )


def test_long_rows_are_cut_and_short_ones_left_alone() -> None:
    factors = clip_factors(torch.tensor([0.5, 2.0, 8.0, math.inf, math.nan, 0.0]), 2.0)
    assert factors.tolist() == pytest.approx([1, SAFE, SAFE / 4, 0, 0, 1])


def test_the_sum_is_that_of_rows_clipped_one_by_one() -> None:
    given = contributions()
    bound = 10.0
    norms = record_norms(given).tolist()
    assert min(norms) < bound < max(norms)
    sums = RecordLayout.from_contributions(given).to_tensors(
        FINE.to_numbers(clipped_sum(given, bound, FINE, per=4.0))
    )
    assert sums.keys() == given.keys()
    for name, total in sums.items():
        by_hand = sum(row * min(1.0, bound / norm) for row, norm in zip(given[name], norms)) / 4
        assert torch.allclose(total, by_hand, atol=1e-4)


def test_a_row_that_is_no_number_counts_for_nothing() -> None:
    given = {"x": torch.tensor([[1.0, 2.0], [math.nan, math.inf], [3.0, 4.0]])}
    assert FINE.to_numbers(clipped_sum(given, 10.0, FINE)).tolist() == [4.0, 6.0]


def test_no_records_sum_to_zero() -> None:
    assert as_rows(torch.zeros(0, 2, 3)).shape == (0, 6) and as_rows(torch.zeros(4)).shape == (4, 1)
    nobody = {"x": torch.zeros(0, 2, 3)}
    assert (
        RecordLayout.from_contributions(nobody)
        .to_tensors(clipped_sum(nobody, 1.0, FINE))["x"]
        .tolist()
        == [[0] * 3] * 2
    )


@pytest.mark.parametrize("order", [1, 2])
def test_norms_of_long_rows_are_exact(order: int) -> None:
    """A million numbers, whose squares float32 would add up with an error of more than the margin
    of ``SAFE``."""
    row = torch.rand(2, 1_000_000, generator=torch.Generator().manual_seed(0))
    exact = [
        math.fsum(abs(v) ** order for v in values.tolist()) ** (1 / order)
        for values in row.double()
    ]
    assert record_norms({"x": row}, order).tolist() == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, True, "1", None])
def test_a_bound_is_a_positive_number(value: object) -> None:
    with pytest.raises(ValueError, match=r"^clip_norm="):
        require_positive(value, "clip_norm")

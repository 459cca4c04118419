"""What one run of a round contributes: sums, single records, and which of them is the largest."""

from __future__ import annotations

import pytest
import torch

from privdd.auditing.dp_tests.instrumentation import (
    EnoughReleases,
    RecordedRelease,
    SeenContributions,
    contribution_norms,
    single_contributions,
)
from privdd.privacy.mechanisms import ClippedSum
from privdd.privacy.noise import ZERO_NOISE

MECHANISM = ClippedSum(1.0, 1.0)


def heeded(rows: torch.Tensor, cell: str | None = None) -> RecordedRelease:
    return RecordedRelease("sums", cell, {"rows": rows}, 0, MECHANISM({"rows": rows}, ZERO_NOISE))


def test_single_contributions_are_clipped_and_their_sizes_are_not() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.5]])
    torch.testing.assert_close(single_contributions(MECHANISM, {"rows": rows}), torch.tensor([[0.6, 0.8], [0.0, 0.5]]), atol=1e-4, rtol=0)
    assert contribution_norms({"rows": rows, "one": torch.tensor([0.0, 1.2])}).tolist() == pytest.approx([5.0, 1.3])


def test_the_largest_row_of_all_cells_is_remembered_by_its_place() -> None:
    seen = SeenContributions({})
    seen(MECHANISM, heeded(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), "label:0"))
    seen(MECHANISM, heeded(torch.tensor([[2.0, 0.0]]), "label:1"))
    assert seen.largest["sums"] == (3.0, (0, "label:0", 1)) and seen.where["sums"] == ["label:0", "label:1"]
    torch.testing.assert_close(seen.totals["sums"][0], torch.tensor([1.0, 1.0]), atol=1e-4, rtol=0)


def test_a_round_ends_once_every_query_was_seen_often_enough() -> None:
    with pytest.raises(EnoughReleases):
        SeenContributions({"sums": 1})(MECHANISM, heeded(torch.ones(1, 2)))

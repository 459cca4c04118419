"""Rounds that arrive one at a time stay spread over all of them."""

from itertools import pairwise

import pytest

from privdd.federated.simulation import select_spread_rounds


@pytest.mark.parametrize("most", [2, 3, 8])
@pytest.mark.parametrize("total", [1, 2, 8, 9, 50, 200])
def test_a_stream_of_rounds_stays_spread(total: int, most: int) -> None:
    kept: list[int] = []
    for t in range(total):
        kept = select_spread_rounds([*kept, t], most)
        assert kept[0] == 0 and kept[-1] == t and kept == sorted(set(kept)) and len(kept) == min(t + 1, most)
    gaps = [b - a for a, b in pairwise(kept)]
    if total > most > 2:
        assert max(gaps) <= 4 * total / (most - 1)


def test_what_fits_is_left_alone() -> None:
    assert select_spread_rounds([3, 5, 9], 3) == [3, 5, 9] and select_spread_rounds([], 2) == []
    assert select_spread_rounds([0, 1, 10, 20], 3) == [0, 10, 20]

"""Ranges of attacks' settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attacks.ranges import check_counts, check_positive


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3"])
def test_a_count_below_the_least_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="limit="):
        check_counts(SimpleNamespace(limit=value), "limit")


@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_a_number_that_is_not_positive_is_refused_by_name(value: float) -> None:
    with pytest.raises(ValueError, match="gamma="):
        check_positive(SimpleNamespace(gamma=value), "gamma")


def test_what_is_in_range_passes() -> None:
    check_counts(SimpleNamespace(limit=1, folds=2), "limit", "folds")
    check_counts(SimpleNamespace(folds=2), "folds", least=2)
    check_positive(SimpleNamespace(gamma=1e-9), "gamma")
    with pytest.raises(ValueError, match="folds=1"):
        check_counts(SimpleNamespace(folds=1), "folds", least=2)

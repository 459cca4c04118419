"""Ranges of attacks' settings."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attacks.validation import check_below_one, check_counts, check_non_negative, check_positive


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3"])
def test_a_count_below_the_least_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="limit="):
        check_counts(SimpleNamespace(limit=value), "limit")


@pytest.mark.parametrize(
    ("check", "values"),
    [(check_positive, [0, -1.0]), (check_non_negative, [-1e-9, -1]), (check_below_one, [1, 1.0, -0.1])],
)
def test_a_number_out_of_range_is_refused_by_name(check: Any, values: list[float]) -> None:
    for value in [*values, math.inf, -math.inf, math.nan]:
        with pytest.raises(ValueError, match=f"^own\\.gamma={value}: a .*number .* is needed$"):
            check(SimpleNamespace(gamma=value), "gamma", under="own.")


def test_what_is_in_range_passes() -> None:
    check_counts(SimpleNamespace(limit=1, folds=np.int64(2)), "limit", "folds")
    check_counts(SimpleNamespace(folds=2), "folds", least=2)
    check_positive(SimpleNamespace(gamma=1e-9), "gamma")
    check_non_negative(SimpleNamespace(gamma=0, tv=2), "gamma", "tv")
    check_below_one(SimpleNamespace(momentum=0, other=0.999), "momentum", "other")
    with pytest.raises(ValueError, match="folds=1"):
        check_counts(SimpleNamespace(folds=1), "folds", least=2)

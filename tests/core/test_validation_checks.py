"""Each check lets through what is allowed and names key, value and need of everything else."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from privdd.core.validation import BadConfig, check_choice, check_integer, check_number, check_share, check_text

at_least_two = partial(check_integer, least=2, needed="at least 2 is needed")
CASES: list[tuple[Callable[..., Any], list[Any], list[Any]]] = [
    (check_number, [0, -1.5, 2**62], [math.nan, math.inf, 2**63, True, "1", None, [1]]),
    (partial(check_number, optional=True), [0, None], [math.nan, "null", False]),
    (check_share, [1e-9, 0.5], [0, 1, -0.1, 1.1, math.nan, True, None]),
    (partial(check_share, one=True), [1, 0.5], [0, 1.0001]),
    (at_least_two, [2, 3, 4.0], [1, 0, -3, 2.5, math.inf, True, "2", None]),
    (partial(check_integer, least=1, most=3), [1, 3, 3.0], [0, 4, 2.5, 10**30, math.nan, "2", None]),
    (check_text, ["", "a"], [None, 1, ["a"]]),
    (partial(check_text, optional=True), ["a", None], [1, True]),
    (partial(check_choice, allowed=("cpu", "cuda")), ["cpu", "cuda"], ["CPU", "", None, 0]),
]


@pytest.mark.parametrize(("check", "value"), [(c, v) for c, allowed, _ in CASES for v in allowed])
def test_what_is_allowed_passes(check: Callable[..., Any], value: Any) -> None:
    check("a.key", value)


@pytest.mark.parametrize(("check", "value"), [(c, v) for c, _, refused in CASES for v in refused])
def test_all_else_is_one_line_with_key_and_value(check: Callable[..., Any], value: Any) -> None:
    with pytest.raises(BadConfig, match=r"^a\.key=") as caught:
        check("a.key", value)
    assert "\n" not in str(caught.value) and (repr(value) in str(caught.value) or str(value) in str(caught.value))


def test_a_whole_number_written_with_a_point_is_an_int() -> None:
    assert at_least_two("a.key", 12.0) == 12 and isinstance(at_least_two("a.key", 12.0), int)

"""Tests of ``privdd.core.validation``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from privdd.core.command import parse_integer, parse_integer_list, parse_literal
from privdd.core.validation import (
    BadConfig,
    check_choice,
    check_integer,
    check_number,
    check_share,
    check_text,
)

# Each check lets through what is allowed and names key, value and need of everything else.


at_least_two = partial(check_integer, least=2, needed="at least 2 is needed")
CASES: list[tuple[Callable[..., Any], list[Any], list[Any]]] = [
    (check_number, [0, -1.5, 2**62], [math.nan, math.inf, 2**63, True, "1", None, [1]]),
    (partial(check_number, optional=True), [0, None], [math.nan, "null", False]),
    (check_share, [1e-9, 0.5], [0, 1, -0.1, 1.1, math.nan, True, None]),
    (partial(check_share, one=True), [1, 0.5], [0, 1.0001]),
    (at_least_two, [2, 3, 4.0], [1, 0, -3, 2.5, math.inf, True, "2", None]),
    (
        partial(check_integer, least=1, most=3),
        [1, 3, 3.0],
        [0, 4, 2.5, 10**30, math.nan, "2", None],
    ),
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
    assert "\n" not in str(caught.value) and (
        repr(value) in str(caught.value) or str(value) in str(caught.value)
    )


def test_a_whole_number_written_with_a_point_is_an_int() -> None:
    assert at_least_two("a.key", 12.0) == 12 and isinstance(at_least_two("a.key", 12.0), int)


# Values as they are typed.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("null", None),
        ("1e-5", 1e-5),
        ("[4,3]", [4, 3]),
        ("net:Net", "net:Net"),
        ("os.system('x')", "os.system('x')"),
        ("", ""),
    ],
)
def test_a_literal_is_read_and_all_else_is_text(text: str, value: Any) -> None:
    found = parse_literal(text)
    assert found == value and type(found) is type(value)


# Whole numbers are read as typed; all else is one line with key and text.


one_to_nine = partial(parse_integer, least=1, most=9)


@pytest.mark.parametrize(
    ("read", "text", "found"),
    [
        (parse_integer, "0", 0),
        (parse_integer, " 012 ", 12),
        (parse_integer, str(2**63 - 1), 2**63 - 1),
        (one_to_nine, "9", 9),
        (parse_integer_list, "2-4", (2, 3, 4)),
        (parse_integer_list, "4,1,4", (4, 1)),
        (parse_integer_list, "7", (7,)),
        (parse_integer_list, "5-5", (5,)),
        (parse_integer_list, "0-99", tuple(range(100))),
    ],
)
def test_numbers_are_read(read: Callable[..., Any], text: str, found: Any) -> None:
    assert read("a.key", text) == found


@pytest.mark.parametrize(
    ("read", "text", "needed"),
    [
        *(
            (parse_integer, text, "a whole number from 0 is needed")
            for text in ("-1", "", "1.0", "1e3", "two", "²", "٣", str(2**63), "9" * 5000)
        ),
        *((one_to_nine, text, "a whole number from 1 to 9 is needed") for text in ("0", "10", "x")),
        *(
            (parse_integer_list, text, "a whole number from 0 is needed")
            for text in ("", "x", "-1", "1-", "1,,2", "1-2-3")
        ),
        *(
            (parse_integer_list, text, "from the smaller to the larger, at most 100")
            for text in ("2-1", "0-100")
        ),
    ],
)
def test_all_else_is_one_line(read: Callable[..., Any], text: str, needed: str) -> None:
    with pytest.raises(BadConfig, match=r"^a\.key=") as caught:
        read("a.key", text)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(needed)

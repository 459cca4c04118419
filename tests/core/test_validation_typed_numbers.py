"""Whole numbers are read as typed; all else is one line with key and text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from privdd.core.validation import BadConfig, parse_integer, parse_integer_list

one_to_nine = partial(parse_integer, least=1, most=9)


@pytest.mark.parametrize(
    ("read", "text", "found"),
    [
        (parse_integer, "0", 0), (parse_integer, " 012 ", 12), (parse_integer, str(2**63 - 1), 2**63 - 1), (one_to_nine, "9", 9),
        (parse_integer_list, "2-4", (2, 3, 4)), (parse_integer_list, "4,1,4", (4, 1)), (parse_integer_list, "7", (7,)), (parse_integer_list, "5-5", (5,)),
        (parse_integer_list, "0-99", tuple(range(100))),
    ],
)  # fmt: skip
def test_numbers_are_read(read: Callable[..., Any], text: str, found: Any) -> None:
    assert read("a.key", text) == found


@pytest.mark.parametrize(
    ("read", "text", "needed"),
    [
        *((parse_integer, text, "a whole number from 0 is needed") for text in ("-1", "", "1.0", "1e3", "two", "²", "٣", str(2**63), "9" * 5000)),
        *((one_to_nine, text, "a whole number from 1 to 9 is needed") for text in ("0", "10", "x")),
        *((parse_integer_list, text, "a whole number from 0 is needed") for text in ("", "x", "-1", "1-", "1,,2", "1-2-3")),
        *((parse_integer_list, text, "from the smaller to the larger, at most 100") for text in ("2-1", "0-100")),
    ],
)  # fmt: skip
def test_all_else_is_one_line(read: Callable[..., Any], text: str, needed: str) -> None:
    with pytest.raises(BadConfig, match=r"^a\.key=") as caught:
        read("a.key", text)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(needed)

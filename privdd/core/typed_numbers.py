"""Whole numbers as they are typed on a command line; each refusal is one line with key, text and what is allowed."""

from __future__ import annotations

from privdd.core.checks import LARGEST, whole_from
from privdd.core.errors import BadConfig

MOST = 100  # numbers of one list


def typed_whole(key: str, text: str, least: int = 0, most: int | None = None) -> int:
    """A text of digits as an int. Raises BadConfig for any other text, and for a number out of range."""
    digits = text.strip()
    plain = digits.isascii() and digits.isdigit() and len(digits) < 20  # of thousands of digits int() raises
    if not plain or not least <= int(digits) <= (LARGEST - 1 if most is None else most):
        raise BadConfig(f"{key}={text}: {whole_from(least, most)}")
    return int(digits)


def typed_list(key: str, text: str) -> tuple[int, ...]:
    """Different numbers from 0, as in 0-4 or 0,3. Raises BadConfig."""
    first, dash, last = text.partition("-")
    if not dash:
        return tuple(dict.fromkeys(typed_whole(key, part) for part in text.split(",")))
    low, high = typed_whole(key, first), typed_whole(key, last)
    if not low <= high < low + MOST:
        raise BadConfig(f"{key}={text}: from the smaller to the larger, at most {MOST}")
    return tuple(range(low, high + 1))

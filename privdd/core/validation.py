"""Checks of single settings. Imports no torch.

Each message names the key, the value and what is allowed, in one line.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral
from typing import Any

LARGEST_INTEGER = 2**63
FINITE = "a finite number below 2**63 is needed"
TEXT = "text is needed"
NUMBER = "a number is needed"
INTEGER = "a whole number is needed"


class BadConfig(ValueError):
    """A config that cannot be run; the message is one line for the user."""


class DataNotFound(ValueError):
    """The data set is neither on this machine nor could it be fetched; the message says what was
    tried."""


def setting_error(key: str, value: Any, needed: str) -> BadConfig:
    return BadConfig(f"{key}={value!r}: {needed}")


def is_number(value: Any) -> bool:
    """An int or a float; True and False are neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_finite(key: str, value: float) -> None:
    """Raises BadConfig for NaN, the infinities and what no 64-bit integer holds."""
    if abs(value) >= LARGEST_INTEGER or not math.isfinite(
        value
    ):  # in this order: isfinite overflows at 10**400
        raise setting_error(key, value, FINITE)


def check_number(key: str, value: Any, *, optional: bool = False) -> None:
    """A finite int or float; null too where it is optional."""
    if optional and value is None:
        return
    if not is_number(value):
        raise setting_error(key, value, f"{NUMBER} (or null)" if optional else NUMBER)
    check_finite(key, value)


def check_share(
    key: str, value: Any, needed: str = "a number in (0, 1) is needed", *, one: bool = False
) -> None:
    """A number above 0 and below 1; ``one``: 1 itself is allowed too."""
    check_number(key, value)
    if not 0 < value < 1 and not (one and value == 1):
        raise setting_error(key, value, needed)


def check_integer(
    key: str, value: Any, least: int = 0, needed: str = "", *, most: int | None = None
) -> int:
    """``value`` as an int from ``least`` to ``most``; 12.0 is 12. needed: what is said of a smaller
    number instead."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = int(value)  # numpy's
    check_number(key, value)
    if int(value) != value:
        raise setting_error(key, value, INTEGER if needed else describe_integer_range(least, most))
    if value < least:
        raise setting_error(key, value, needed or describe_integer_range(least, most))
    if most is not None and value > most:
        raise setting_error(
            key,
            value,
            f"at most {most} are allowed" if needed else describe_integer_range(least, most),
        )
    return int(value)


def describe_integer_range(least: int, most: int | None = None) -> str:
    return f"a whole number from {least}{'' if most is None else f' to {most}'} is needed"


def check_count(key: str, value: object, needed: str = "an integer >= 1 is needed") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not value >= 1:
        raise ValueError(f"{key}={value!r}: {needed}")


def check_text(key: str, value: Any, *, optional: bool = False) -> None:
    if not isinstance(value, str) and not (optional and value is None):
        raise setting_error(key, value, f"{TEXT} (or null)" if optional else TEXT)


def check_choice(key: str, value: Any, allowed: Collection[str]) -> None:
    """Check that a value is one of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise BadConfig(f"{key}={value}: allowed are {', '.join(allowed)}")

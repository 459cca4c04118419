"""Checks of single settings: each names the key, the value and what is allowed, in one line."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral
from typing import Any

from privdd.core.errors import BadConfig

LARGEST = 2**63
FINITE = "a finite number below 2**63 is needed"
TEXT = "text is needed"
NUMBER = "a number is needed"
WHOLE = "a whole number is needed"


def refused(key: str, value: Any, needed: str) -> BadConfig:
    return BadConfig(f"{key}={value!r}: {needed}")


def is_number(value: Any) -> bool:
    """An int or a float; True and False are neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_finite(key: str, value: float) -> None:
    """Raises BadConfig for NaN, the infinities and what no 64-bit integer holds."""
    if abs(value) >= LARGEST or not math.isfinite(value):  # in this order: isfinite overflows at 10**400
        raise refused(key, value, FINITE)


def check_number(key: str, value: Any, *, optional: bool = False) -> None:
    """A finite int or float; null too where it is optional."""
    if optional and value is None:
        return
    if not is_number(value):
        raise refused(key, value, f"{NUMBER} (or null)" if optional else NUMBER)
    check_finite(key, value)


def check_share(key: str, value: Any, needed: str = "a number in (0, 1) is needed", *, one: bool = False) -> None:
    """A number above 0 and below 1; ``one``: 1 itself is allowed too."""
    check_number(key, value)
    if not 0 < value < 1 and not (one and value == 1):
        raise refused(key, value, needed)


def whole(key: str, value: Any, least: int = 0, needed: str = "", *, most: int | None = None) -> int:
    """``value`` as an int from ``least`` to ``most``; 12.0 is 12. needed: what is said of a smaller number instead."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = int(value)  # numpy's
    check_number(key, value)
    if int(value) != value:
        raise refused(key, value, WHOLE if needed else whole_from(least, most))
    if value < least:
        raise refused(key, value, needed or whole_from(least, most))
    if most is not None and value > most:
        raise refused(key, value, f"at most {most} are allowed" if needed else whole_from(least, most))
    return int(value)


def whole_from(least: int, most: int | None = None) -> str:
    """What is needed, in words."""
    return f"a whole number from {least}{'' if most is None else f' to {most}'} is needed"


def check_text(key: str, value: Any, *, optional: bool = False) -> None:
    if not isinstance(value, str) and not (optional and value is None):
        raise refused(key, value, f"{TEXT} (or null)" if optional else TEXT)


def check_choice(key: str, value: Any, allowed: Collection[str]) -> None:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise BadConfig(f"{key}={value}: allowed are {', '.join(allowed)}")

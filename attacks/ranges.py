"""Ranges of the settings of an attack or a method, checked when it is made; infinity and NaN lie in none of them.

Each raises ValueError, one line, for the first field of ``settings`` that is out of its range. under: what stands before
the field's name in that line.
"""

from __future__ import annotations

from math import inf
from numbers import Integral


def check_counts(settings: object, *names: str, least: int = 1, under: str = "") -> None:
    """Whole numbers of at least ``least``, numpy's among them."""
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise ValueError(f"{under}{name}={value!r}: a whole number of at least {least} is needed")


def check_positive(settings: object, *names: str, under: str = "") -> None:
    """Finite numbers above 0."""
    for name in names:
        if not 0 < getattr(settings, name) < inf:
            raise ValueError(f"{under}{name}={getattr(settings, name)!r}: a finite number above 0 is needed")


def check_from_zero(settings: object, *names: str, under: str = "") -> None:
    """Finite numbers from 0: weights of a term, and deviations."""
    for name in names:
        if not 0 <= getattr(settings, name) < inf:
            raise ValueError(f"{under}{name}={getattr(settings, name)!r}: a finite number from 0 is needed")


def check_below_one(settings: object, *names: str, under: str = "") -> None:
    """Numbers in [0, 1): momenta."""
    for name in names:
        if not 0 <= getattr(settings, name) < 1:
            raise ValueError(f"{under}{name}={getattr(settings, name)!r}: a number in [0, 1) is needed")

"""Ranges of an attack's settings, checked when it is made."""

from __future__ import annotations


def check_counts(attack: object, *names: str, least: int = 1) -> None:
    """Raises ValueError, naming the field, for a whole number below ``least``."""
    for name in names:
        value = getattr(attack, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r}: a whole number of at least {least} is needed")


def check_positive(attack: object, *names: str) -> None:
    """Raises ValueError, naming the field, for a number that is not above 0."""
    for name in names:
        if not getattr(attack, name) > 0:
            raise ValueError(f"{name}={getattr(attack, name)!r}: a number above 0 is needed")

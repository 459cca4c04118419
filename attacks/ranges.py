"""Ranges of an attack's settings, checked when it is made."""

from __future__ import annotations


def check_counts(settings: object, *names: str, least: int = 1) -> None:
    """Raises ValueError, naming the field, for a whole number below ``least``."""
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r}: a whole number of at least {least} is needed")


def check_positive(settings: object, *names: str) -> None:
    """Raises ValueError, naming the field, for a number that is not above 0."""
    for name in names:
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name}={getattr(settings, name)!r}: a number above 0 is needed")

"""One number of a run folder that is not what its other files say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from privdd.runtime.files import DamagedRun, printable

RELATIVE_TOLERANCE = 1e-6  # relative: between versions of SciPy and dp-accounting the last digits differ


class Unverified(DamagedRun):
    """A run folder whose files contradict each other."""


@dataclass(frozen=True)
class Disagreement:
    """file: where the stored value stands; key: its dotted name; stored, found: in words."""

    file: str
    key: str
    stored: str
    found: str

    def __str__(self) -> str:
        return printable(f"{self.file}: {self.key}: stored {self.stored}, found {self.found}")


def find_disagreements(file: str, key: str, stored: Any, found: Any) -> Iterator[Disagreement]:
    """Every leaf of two plain values (mappings, lists, numbers, texts) that differs."""
    if isinstance(stored, Mapping) and isinstance(found, Mapping):
        for name in dict.fromkeys([*stored, *found]):
            yield from find_disagreements(file, f"{key}.{name}", stored.get(name), found.get(name))
    elif _is_list(stored) and _is_list(found) and len(stored) == len(found):
        for at, (one, other) in enumerate(zip(stored, found, strict=True)):
            yield from find_disagreements(file, f"{key}.{at}", one, other)
    elif not is_same_value(stored, found):
        yield Disagreement(file, key, _printable_value(stored), _printable_value(found))


_numbers: ContextVar[list[int] | None] = ContextVar("numbers", default=None)


@contextmanager
def counted() -> Iterator[list[int]]:
    """A list with one number, of the stored numbers that were compared meanwhile."""
    count = [0]
    mark = _numbers.set(count)
    try:
        yield count
    finally:
        _numbers.reset(mark)


def is_same_value(stored: Any, found: Any) -> bool:
    """Equal, or two numbers that differ by rounding; infinity may be written as "inf"."""
    if (count := _numbers.get()) is not None and not isinstance(stored, bool) and _to_number(stored) is not None:
        count[0] += 1
    if isinstance(stored, bool) or isinstance(found, bool) or stored is None or found is None:
        return stored is found
    one, other = _to_number(stored), _to_number(found)
    if one is None or other is None:
        return bool(stored == found)
    return math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-9)


def _to_number(value: Any) -> float | None:
    if value in ("inf", "-inf"):
        return float(value)
    return float(value) if isinstance(value, int | float) else None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _printable_value(value: Any) -> str:
    if value is None:
        return "nothing"
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."

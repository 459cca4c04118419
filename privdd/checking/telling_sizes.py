"""Numbers of clients or records at which the release changes kind: nothing for fewer than five, no noise for one alone.

No fixed list of sizes holds every threshold. A few sizes are called a few times each, and where two of them differ in kind
the step between them is found by halving: neighbours on both sides of it are then tried like all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from privdd.checking.called import BlackBox, Refused
from privdd.checking.constant_parts import scaled
from privdd.checking.neighbours import PLAIN, Neighbouring, Tried, pairs
from privdd.checking.sampled import Clock, drawn

SIZES = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)
CALLS = 4  # at each size
STEPS = 2  # between sizes, that are looked for
SHARE = 0.03  # of the time and the calls that are left


@dataclass(frozen=True)
class _Kind:
    """What came out at one size: types, shapes and texts; and whether all calls gave the same numbers."""

    codes: frozenset[str]
    repeats: bool

    def differs(self, other: _Kind) -> bool:
        return self.repeats != other.repeats or not self.codes & other.codes


def at_telling_sizes(mechanism: BlackBox, relation: str, tried: Tried, clock: Clock) -> list[Neighbouring]:
    """Neighbours of the sizes at which the release changes kind, among records of norm 1."""
    if mechanism.kind == "update":
        return []
    found = []
    for n in _steps(mechanism, tried, clock):
        more = pairs(mechanism.kind, relation, _of_size(mechanism.kind, tried, n))
        found += [pair for pair in more if "others random" in pair.says and PLAIN[0] in pair.says]
    return found


def _of_size(kind: str, tried: Tried, n: int) -> Tried:
    return replace(tried, tables=((n, tried.tables[0][1]),)) if kind == "records" else replace(tried, crowds=(n,))


def _steps(mechanism: BlackBox, tried: Tried, clock: Clock) -> Iterator[int]:
    """The larger of two sizes next to each other whose releases differ in kind, ``STEPS`` at most."""
    ends, last = clock.left() * (1 - SHARE), mechanism.calls + SHARE * (clock.calls - mechanism.calls)
    before: tuple[int, _Kind] | None = None
    given = 0
    for n in SIZES:
        if given == STEPS or clock.left() < ends or mechanism.calls > last:
            return
        now = _kind(mechanism, tried, n, clock)
        if before and now and before[1].differs(now):
            given += 1
            yield _between(mechanism, tried, before, n, clock)
        before = (n, now) if now else None


def _between(mechanism: BlackBox, tried: Tried, low: tuple[int, _Kind], high: int, clock: Clock) -> int:
    """The first size above ``low`` that is not of its kind, by halving."""
    least, kind = low
    while high - least > 1:
        middle = (least + high) // 2
        now = _kind(mechanism, tried, middle, clock)
        least, high = (least, middle) if now is None or kind.differs(now) else (middle, high)
    return high


def _kind(mechanism: BlackBox, tried: Tried, n: int, clock: Clock) -> _Kind | None:
    """None where the mechanism refuses so many."""
    try:
        block = drawn(mechanism, [scaled(mechanism.kind, _of_size(mechanism.kind, tried, n), 1.0)], CALLS, clock)
    except Refused:
        return None
    return _Kind(frozenset(block.codes), bool((block.rows == block.rows[:1]).all()) and bool(np.size(block.rows)))

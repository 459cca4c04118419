"""Numbers in the release that have no noise at all: which of a million records was it?

A count, a norm or a loss that comes out beside the noised values is the same in every call on the same data. The record
is scaled by a secret factor, one of very many; whoever sees the number finds the factor by calling the mechanism on
guesses of his own. A mechanism with (epsilon, delta)-DP lets him be right with a chance of e^epsilon / K + delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from attacks.naming import from_names
from privdd.checking.called import BlackBox, Data, Refused
from privdd.checking.neighbours import Tried, size_of, split
from privdd.checking.sampled import Clock, drawn

CANDIDATES = 2**22  # secret factors, equally far apart on a log scale
GAMES = 16
RANGES = ((1e-3, 1e-2), (0.1, 1.0), (2.0, 20.0), (1e2, 1e4))


@dataclass(frozen=True)
class Constant:
    """epsilon: lower bound; place: which number of the release, counted from 0; won: of GAMES names."""

    epsilon: float
    place: int
    won: int


def scaled(kind: str, tried: Tried, factor: float) -> Data:
    """Data whose record has norm ``factor``; the others are of norm 1."""
    rng = np.random.default_rng([tried.seed, 2])
    if kind == "records":
        n, d = tried.tables[min(2, len(tried.tables) - 1)]
        rows = rng.standard_normal((n, d))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        rows[0] *= factor
        return rows
    shapes = tried.structures[0]
    m = size_of(shapes)
    made = rng.standard_normal((tried.crowds[-1], m))
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    made[0] *= factor
    if kind == "update":
        return split(made[0], shapes)
    return [split(row, shapes) for row in made], [100] * len(made)


def constant_part(
    mechanism: BlackBox,
    tried: Tried,
    clock: Clock,
    rng: np.random.Generator,
    *,
    delta: float,
    confidence: Callable[[], float],
) -> Constant | None:
    """The first number without noise that tells the record's size; None where there is none.

    confidence: -> that of the next test; each place that is tried is one.
    """
    make = lambda factor: scaled(mechanism.kind, tried, factor)  # noqa: E731
    for low, high in RANGES:
        for place, rising in _telling(mechanism, make, low, high, clock):
            won = sum(_named(mechanism, make, place, rising, (low, high), clock, rng) for _ in range(GAMES))
            bound = from_names(won, GAMES, math.log(CANDIDATES), delta=delta, confidence=confidence())
            if bound > 0:
                return Constant(bound, place, won)
    return None


def _telling(
    mechanism: BlackBox, make: Callable[[float], Data], low: float, high: float, clock: Clock
) -> Iterator[tuple[int, bool]]:
    """Places whose numbers repeat exactly and move one way with the factor; whether upwards. At most 4."""
    seen = []
    for factor in np.geomspace(low, high, 6):
        try:
            block = drawn(mechanism, [make(factor)], 3, clock)
        except Refused:
            return
        seen.append(block.rows[:, 0])
    if len({rows.shape for rows in seen}) != 1:
        return
    values = np.stack(seen)  # (factors, 3, m)
    repeats = (values == values[:, :1]).all((0, 1))
    steps = np.diff(values[:, 0], axis=0)
    places = np.flatnonzero(repeats & ((steps > 0).all(0) | (steps < 0).all(0)))
    yield from ((int(j), bool(steps[0, j] > 0)) for j in places[:4])


def _named(
    mechanism: BlackBox,
    make: Callable[[float], Data],
    place: int,
    rising: bool,
    ends: tuple[float, float],
    clock: Clock,
    rng: np.random.Generator,
) -> bool:
    """One game: draw a factor, look at the number, find the factor by bisection."""
    width = math.log(ends[1] / ends[0])

    def factor(index: float) -> float:
        return ends[0] * math.exp(width * index / CANDIDATES)

    def number(index: float) -> float:
        return float(drawn(mechanism, [make(factor(index))], 1, clock).rows[0, 0, place])

    secret = int(rng.integers(CANDIDATES))
    seen = number(secret)
    low, high = -0.5, CANDIDATES - 0.5
    while high - low > 1:
        middle = (low + high) / 2
        if (number(middle) < seen) == rising:
            low = middle
        else:
            high = middle
    return round((low + high) / 2) == secret

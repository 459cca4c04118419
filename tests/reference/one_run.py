"""The f-DP one-run bound as a linear program, written from the theorem alone.

Unknowns are the chances p_0 .. p_g of each count of right guesses. For a curve f that is the
maximum of finitely many lines, 1 - f is the minimum of as many, so the theorem's inequality for a
set T is one linear inequality a line. The program maximises the chance of at least so many right
guesses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.optimize import linprog

Line = tuple[float, float]  # (intercept, slope): f(a) >= intercept + slope * a


def largest_tail(
    m: int, guesses: int, correct: int, lines: Sequence[Line], sets: Iterable[Sequence[int]]
) -> float:
    """The largest P[at least ``correct`` right] that the inequalities of these sets T of counts
    allow."""
    j = np.arange(guesses + 1)
    rows = []
    limits = []
    for chosen in sets:
        left = np.zeros(guesses + 1)
        right = np.zeros(guesses + 1)
        for count in chosen:
            left[count] += count / m
            if count:
                right[count - 1] += (guesses - count + 1) / m
        for intercept, slope in lines:  # left <= 1 - intercept - slope * right
            rows.append(left + slope * right)
            limits.append(1 - intercept)
    found = linprog(
        -(j >= correct).astype(float),
        np.array(rows),
        np.array(limits),
        [np.ones(guesses + 1)],
        [1.0],
    )
    assert found.status == 0, found.message
    return float(-found.fun)


def upper_sets(guesses: int) -> list[range]:
    return [range(least, guesses + 1) for least in range(guesses + 1)]


def tangents(curve: object, slope: object, points: np.ndarray) -> list[Line]:
    """Lines below a convex curve: its tangents at ``points``, and zero."""
    return [(0.0, 0.0)] + [(float(curve(a) - slope(a) * a), float(slope(a))) for a in points]  # type: ignore[operator]

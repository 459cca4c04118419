"""The same neighbours among more of the same others: the more speaks against an outcome, the more one record changes its odds.

A choice by counts or scores gives a record its whole epsilon only where its outcome is rare without it. How rare is best
depends on how many transcripts there are, so a few crowds are tried.
"""

from __future__ import annotations

import numpy as np

from privdd.checking.called import Data
from privdd.checking.neighbours import Neighbouring

TIMES = (2, 3, 4, 8)
MOST = 200  # others


def crowded(pair: Neighbouring, kind: str) -> list[Neighbouring]:
    """The pair with its other records or clients repeated; none where there are no others."""
    if kind == "update":
        return []
    present, absent = (_members(side, kind) for side in (pair.present, pair.absent))
    place = next((i for i, (a, b) in enumerate(zip(present, absent)) if not _same(a, b)), len(absent))
    others = [one for i, one in enumerate(present) if i != place]
    found = []
    for times in TIMES:
        if not others or len(others) * times > MOST:
            continue
        rest = others * times
        instead = [absent[place]] if len(absent) == len(present) else []
        sides = [_joined(side, kind) for side in ([present[place], *rest], [*instead, *rest])]
        found.append(Neighbouring(sides[0], sides[1], f"{pair.says}, the others {times} times", pair.axis))
    return found


def _members(data: Data, kind: str) -> list[tuple[list[np.ndarray], int]]:
    """Each record or client, with its weight."""
    if kind == "records":
        return [([row], 1) for row in data]
    return list(zip(data[0], data[1]))


def _joined(members: list[tuple[list[np.ndarray], int]], kind: str) -> Data:
    if kind == "records":
        return np.stack([arrays[0] for arrays, _ in members])
    return [[a.copy() for a in arrays] for arrays, _ in members], [weight for _, weight in members]


def _same(one: tuple[list[np.ndarray], int], other: tuple[list[np.ndarray], int]) -> bool:
    return one[1] == other[1] and all(np.array_equal(a, b) for a, b in zip(one[0], other[0]))

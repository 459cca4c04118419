"""Low bits: x + noise in floating point keeps the grid of x where they nearly cancel (Mironov 2012; Jin et al. 2022).

All floating-point noise without a public lattice does this. A statement is taken to be about real numbers unless it
says ``stated.low_bits=true``; then a bound from the lowest bit of each number decides, else it is told as a condition.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attacks.epsilon import best_threshold, from_scores
from privdd.checking.called import BlackBox, Refused
from privdd.checking.looks import Looked
from privdd.checking.neighbours import Tried, pairs
from privdd.checking.sampled import Clock, drawn
from privdd.checking.stated import Stated

CALLS = 4000
SHOWN = 600  # where it only is a condition
TRIED = 6  # pairs
FEW = 0.1  # different values for each call: fewer are outcomes that come back
SHARE = 0.05  # of the time or the calls left, after which no further pair is looked at where it only is a condition


def lowest_bits(rows: np.ndarray) -> np.ndarray:
    """(n, m) -> (n,): log2 of the lowest set bit of any number in a row (0 has none)."""
    mantissa, exponent = np.frexp(rows)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    low = np.where(whole > 0, np.log2(np.maximum(whole & -whole, 1)) + exponent - 53.0, 2000.0)
    return low.min(1)


def _moved(rows: np.ndarray, axis: np.ndarray) -> np.ndarray:
    """The number in which the record is largest, where numbers of the release are those of the record."""
    return rows[:, [int(np.argmax(np.abs(axis)))]] if rows.shape[1] == len(axis) else rows


def bits(mechanism: BlackBox, stated: Stated, tried: Tried, clock: Clock, confidence: float) -> list[Looked]:
    """One row: whether low bits alone tell a record from its absence."""
    small = replace(tried, structures=tried.structures[-1:], tables=tried.tables[:1])  # few numbers: the record is most
    every = pairs(mechanism.kind, stated.relation, small)
    chosen = [p for p in every if "one number" in p.says][:TRIED] or every[:1]
    count = CALLS if stated.low_bits else SHOWN
    best, ends = (0.0, ""), (1 - SHARE) * clock.left()
    last = mechanism.calls + SHARE * (clock.calls - mechanism.calls)
    looked = 0
    for pair in chosen:
        if looked and not stated.low_bits and (clock.left() < ends or mechanism.calls > last):
            break
        looked += 1
        try:
            sides = [drawn(mechanism, [side], count, clock) for side in (pair.present, pair.absent)]
        except Refused:
            continue
        if sides[0].rows.shape != sides[1].rows.shape or not sides[0].rows.size:
            continue
        if not stated.low_bits and all(len(np.unique(side.rows)) <= FEW * count for side in sides):
            continue  # a choice among a few values is no sum that was rounded
        scores = [lowest_bits(_moved(block.rows[:, 0], pair.axis)) for block in sides]
        half = count // 2
        parts = [
            (np.concatenate([s[w] for s in scores]), np.repeat([True, False], [len(scores[0][w]), len(scores[1][w])]))
            for w in (slice(0, half), slice(half, None))
        ]
        for sign in (1.0, -1.0):
            at = best_threshold(sign * parts[0][0], parts[0][1], stated.delta)
            bound = from_scores(sign * parts[1][0], parts[1][1], delta=stated.delta, thresholds=[at],
                                confidence=1 - (1 - confidence) / (2 * TRIED))  # fmt: skip
            best = max(best, (bound.value, pair.says))
    says = "the lowest bits of the released numbers tell the record from its absence"
    if stated.low_bits:
        outcome = "refuted" if best[0] > stated.limit else "not refuted"
        return [Looked("low bits", outcome, says, best[0], "finite_sample", best[1])]
    if best[0] > 0:
        return [
            Looked(
                "low bits",
                "condition",
                f"{says}: the statement holds for real numbers",
                best[0],
                "finite_sample",
                best[1],
            )
        ]
    left = f"; {looked} of {len(chosen)} pairs of inputs were looked at" if looked < len(chosen) else ""
    return [Looked("low bits", "not refuted", f"no bit was seen to tell anything{left}")]

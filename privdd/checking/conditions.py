"""Inputs that a statement may not be about, told as conditions: NaN and infinities, unless ``inputs=any`` is stated, and
those on which calls fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from privdd.checking.called import BlackBox, Data, Refused
from privdd.checking.constant_parts import scaled
from privdd.checking.looks import Looked
from privdd.checking.neighbours import Neighbouring, Tried, broken, pairs
from privdd.checking.sampled import Clock, drawn
from privdd.checking.stated import Stated

CALLS = 30
FAILED = 10  # calls on each side of a pair that was refused
PAIRS = 3  # of those
SCALAR = ((), (5,))  # shapes of an update with a number of no dimensions, such as a counter of batch normalisation


def unusual_inputs(mechanism: BlackBox, stated: Stated, tried: Tried, clock: Clock) -> list[Looked]:
    """Whether a record with NaN or infinity shows in the release in every call, and never without it."""
    found = _scalars(mechanism, tried, clock) if mechanism.kind != "records" else []
    if stated.inputs == "any":
        return found  # NaN and infinity were among the neighbours
    pair = pairs(mechanism.kind, stated.relation, tried)[0]
    for value, name in ((np.nan, "NaN"), (np.inf, "infinity")):
        now = broken(pair, mechanism.kind, value)
        try:
            sides = [drawn(mechanism, [side], CALLS, clock) for side in (now.present, now.absent)]
        except Refused as no:
            found.append(Looked(f"a record with {name}", "not refuted", f"is refused: {no}", inputs=now.says))
            continue
        codes = [Counter(block.codes) for block in sides]
        if not codes[0].keys() & codes[1].keys():
            says = f"a record with {name} shows in every release; without it none does: numbers must be finite"
            found.append(Looked("finite inputs", "condition", says, inputs=now.says))
            break
    return found


def failures(mechanism: BlackBox, refused: Sequence[Neighbouring], clock: Clock) -> list[Looked]:
    """Whether calls fail on some inputs and never on their neighbours: the failure is an answer without noise."""
    for pair in refused[:PAIRS]:
        present, absent = (_failing(mechanism, side, clock) for side in (pair.present, pair.absent))
        if sorted((len(present), len(absent))) == [0, FAILED]:
            says = f"calls fail on some inputs and not on their neighbours ({(present or absent)[0]}): inputs must be such that none fails"
            return [Looked("inputs without failures", "condition", says, inputs=pair.says)]
    return []


def _failing(mechanism: BlackBox, data: Data, clock: Clock) -> list[str]:
    """What was said in those of ``FAILED`` calls that failed."""
    said = []
    for _ in range(FAILED):
        try:
            drawn(mechanism, [data], 1, clock)
        except Refused as no:
            said.append(str(no))
    return said


def _scalars(mechanism: BlackBox, tried: Tried, clock: Clock) -> list[Looked]:
    """Whether numbers of no dimensions come out without noise where arrays have some."""
    one = replace(tried, structures=(SCALAR,))
    try:
        blocks = [drawn(mechanism, [scaled(mechanism.kind, one, size)], CALLS, clock) for size in (1.0, 2.0)]
    except Refused:
        return []
    if blocks[0].rows.shape != blocks[1].rows.shape or blocks[0].rows.shape[2] < 2:
        return []
    first, second = (block.rows[:, 0] for block in blocks)
    noise = np.ptp(first, axis=0)
    if noise[0] == 0 and noise[1:].max() > 0 and first[0, 0] != second[0, 0]:
        says = "an array of no dimensions (a scalar) is released without noise: arrays must have at least one dimension"
        return [Looked("scalars", "condition", says, inputs="an update of shapes (), (5,)")]
    return []

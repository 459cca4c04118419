"""Which neighbours are worth many calls? Successive halving over everything that is tried.

Every pair gets a few transcripts, the better part of them more, and so on (Jamieson and Talwalkar 2016). Scores are
only an order of search: whatever is said later is said of fresh transcripts.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privdd.checking.called import BlackBox, Data, Refused
from privdd.checking.learned import outcomes, statistics
from privdd.checking.marks import FEW, Marks
from privdd.checking.neighbours import Neighbouring
from privdd.checking.sampled import Block, Clock, drawn
from privdd.checking.tail_law import quiet

FIRST, LEAST = 96, 8  # transcripts a side in the first round; in any
HOPEFUL = 0.5  # standard errors taken off the odds in the first round, where a rare outcome has been seen a few times
NOTHING = 1e-6  # below every record that is tried
CERTAIN = 1e6  # the score of what is told apart without exception


@dataclass(frozen=True, eq=False)
class Ranked:
    """score: the largest effect; odds: of outcomes that come back, how much more often one is seen, from below; mixed: these
    are marks beside numbers that do not come back."""

    pair: Neighbouring
    score: float
    odds: float = 0.0
    mixed: bool = False


def by_odds(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Those whose outcomes come back with other odds, the best of each size of data first, then the second of each."""
    at: Counter[tuple[Any, ...]] = Counter()
    order: list[tuple[int, int, Ranked]] = []
    for one in sorted((one for one in ranked if one.odds > 0), key=lambda one: -one.odds):
        size = size_of_data(one.pair.present)
        order.append((at[size], len(order), one))
        at[size] += 1
    return [one for _, _, one in sorted(order, key=lambda row: row[:2])]


def alone(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Those whose data hold nothing but the record: at the ends of a range a record shifts least, and its odds may be highest."""
    return [one for one in ranked if quiet(one.pair.absent, NOTHING)]


def size_of_data(data: Data) -> tuple[Any, ...]:
    """What tells tables of other sizes, and crowds or updates of other numbers, from each other."""
    if isinstance(data, np.ndarray):
        return data.shape
    return (len(data[0]), len(data[0][0])) if isinstance(data, tuple) else (len(data),)


def screened(
    mechanism: BlackBox,
    pairs: Sequence[Neighbouring],
    around: Callable[[Data], list[Data]],
    clock: Clock,
    share: float,
    *,
    keep: int,
) -> tuple[list[Ranked], list[tuple[Neighbouring, str]]]:
    """The ``keep`` most promising pairs, best first, and those that the mechanism refused, with what it said.

    share: of the time and of the calls that are left.
    """
    ends = clock.left() * (1 - share)
    refusals: list[tuple[Neighbouring, str]] = []
    last = mechanism.calls + share * (clock.calls - mechanism.calls)
    kept, count, ranked = list(pairs), FIRST, [Ranked(pair, 0.0) for pair in pairs[:keep]]
    errors = HOPEFUL
    while kept:
        cost = _cost(mechanism, kept[0], around, clock)
        calls = len(around(kept[0].present))
        room = min((clock.left() - ends) / max(cost, 1e-7), (last - mechanism.calls) / calls)
        room /= 3  # a third of what is left for each round
        affordable = int(room / (2 * LEAST))
        if affordable < 1:
            break
        if affordable < len(kept):
            kept = [kept[int(i)] for i in np.linspace(0, len(kept) - 1, affordable)]
        n = max(LEAST, min(count, int(room / (2 * len(kept)))))
        found = []
        for pair in kept:
            try:
                one, other = (drawn(mechanism, around(side), n, clock) for side in (pair.present, pair.absent))
            except Refused as no:
                refusals.append((pair, str(no)))
                continue
            seen = score(one, other, pair.axis), odds(one, other, errors)
            found.append(Ranked(pair, *seen, mixed=not comes_back(one, other)))
        ranked = sorted(found, key=lambda one: -one.score) or ranked
        if len(ranked) <= keep:
            break
        errors = min(2 * errors, 2.0)
        kept, count = [one.pair for one in _best(ranked, max(keep, len(ranked) // 4))], count * 4
    return _best(ranked, keep), refusals


def _best(ranked: list[Ranked], count: int) -> list[Ranked]:
    """The ``count`` best; a third of the places are for those with the best odds, where there are any, and two, at most a
    third, for records that are alone."""
    chosen = by_odds(ranked)[: count // 3]
    chosen += [one for one in alone(ranked)[: min(2, count // 3)] if one not in chosen]
    rest = [one for one in ranked if one not in chosen][: count - len(chosen)]
    return [one for one in ranked if one in chosen or one in rest]


def comes_back(present: Block, absent: Block) -> bool:
    """Whether whole outcomes do, as they do where no noise is continuous."""
    return sum(len(set(outcomes(block))) for block in (present, absent)) <= (len(present) + len(absent)) / 4


def odds(present: Block, absent: Block, errors: float) -> float:
    """The largest change of the log odds of one outcome, less ``errors`` standard errors; where none comes back, of one
    mark, such as a name, a shape or a flag; 0 where there is none."""
    if comes_back(present, absent):
        seen = [Counter(outcomes(block)) for block in (present, absent)]
        counts = np.array([[one[x] + 0.5 for one in seen] for x in seen[0] | seen[1]])
    elif (marks := Marks.of(present, absent, values=FEW)) is not None:
        counts = np.stack([marks.on(block).sum(0) + 0.5 for block in (present, absent)], 1)
    else:
        return 0.0
    change = np.abs(np.log(counts[:, 0] / counts[:, 1])) - errors * np.sqrt((1 / counts).sum(1))
    return max(0.0, float(change.max()))


def _cost(mechanism: BlackBox, pair: Neighbouring, around: Callable[[Data], list[Data]], clock: Clock) -> float:
    began = time.process_time()
    try:
        drawn(mechanism, around(pair.present), 3, clock)
    except Refused:
        return 1e-6
    return (time.process_time() - began) / 3


def score(present: Block, absent: Block, axis: np.ndarray | None) -> float:
    """The largest effect of any statistic, in standard deviations: learned on one half, seen on the other."""
    half = len(present) // 2
    first = [Block(b.rows[:half], b.codes[:half]) for b in (present, absent)]
    second = [Block(b.rows[half:], b.codes[half:]) for b in (present, absent)]
    best = 0.0
    for how, statistic in statistics(first[0], first[1], axis).items():
        a, b = statistic(second[0]), statistic(second[1])
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            continue
        gap, spread = abs(float(a.mean() - b.mean())), math.sqrt((float(a.var()) + float(b.var())) / 2)
        if spread <= 1e-9 * gap:
            effect = CERTAIN if gap else 0.0
        else:
            effect = min(gap / spread, CERTAIN) * (1.0 if how.startswith("shift") else 0.7)
        best = max(best, effect)
    return best

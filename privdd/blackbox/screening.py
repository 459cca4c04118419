"""Screening of neighbouring inputs: a few transcripts of each pair, ranked by how well they can be told apart."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privdd.blackbox.distinguishers import MIN_VALUES, ReleaseMarks, discrete_outcomes, learn_statistics
from privdd.blackbox.inputs import NeighbouringInputs
from privdd.blackbox.mechanism import BlackBox, Data, InputRefused
from privdd.blackbox.noise_laws import is_quiet
from privdd.blackbox.transcripts import CallBudget, Transcripts, draw_transcripts

FIRST, LEAST = 96, 8  # transcripts a side in the first round; in any
HOPEFUL = 0.5  # standard errors taken off the odds in the first round, where a rare outcome has been seen a few times
NOTHING = 1e-6  # below every record that is tried
CERTAIN = 1e6  # the score of what is told apart without exception


@dataclass(frozen=True, eq=False)
class RankedPair:
    """score: the largest effect; odds: of outcomes that come back, how much more often one is seen, from below; mixed: these
    are marks beside numbers that do not come back."""

    pair: NeighbouringInputs
    score: float
    odds: float = 0.0
    mixed: bool = False


def rank_by_odds(ranked: Sequence[RankedPair]) -> list[RankedPair]:
    """Those whose outcomes come back with other odds, the best of each size of data first, then the second of each."""
    at: Counter[tuple[Any, ...]] = Counter()
    order: list[tuple[int, int, RankedPair]] = []
    for one in sorted((one for one in ranked if one.odds > 0), key=lambda one: -one.odds):
        size = size_of_data(one.pair.present)
        order.append((at[size], len(order), one))
        at[size] += 1
    return [one for _, _, one in sorted(order, key=lambda row: row[:2])]


def pairs_of_record_alone(ranked: Sequence[RankedPair]) -> list[RankedPair]:
    """Those whose data hold nothing but the record: at the ends of a range a record shifts least, and its odds may be highest."""
    return [one for one in ranked if is_quiet(one.pair.absent, NOTHING)]


def size_of_data(data: Data) -> tuple[Any, ...]:
    """What tells tables of other sizes, and crowds or updates of other numbers, from each other."""
    if isinstance(data, np.ndarray):
        return data.shape
    return (len(data[0]), len(data[0][0])) if isinstance(data, tuple) else (len(data),)


def screen_pairs(
    mechanism: BlackBox,
    pairs: Sequence[NeighbouringInputs],
    around: Callable[[Data], list[Data]],
    clock: CallBudget,
    share: float,
    *,
    keep: int,
) -> tuple[list[RankedPair], list[tuple[NeighbouringInputs, str]]]:
    """The ``keep`` most promising pairs, best first, and those that the mechanism refused, with what it said.

    share: of the time and of the calls that are left.
    """
    ends = clock.seconds_left() * (1 - share)
    refusals: list[tuple[NeighbouringInputs, str]] = []
    last = mechanism.calls + share * (clock.calls - mechanism.calls)
    kept, count, ranked = list(pairs), FIRST, [RankedPair(pair, 0.0) for pair in pairs[:keep]]
    errors = HOPEFUL
    while kept:
        cost = _transcript_cost(mechanism, kept[0], around, clock)
        calls = len(around(kept[0].present))
        room = min((clock.seconds_left() - ends) / max(cost, 1e-7), (last - mechanism.calls) / calls)
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
                one, other = (
                    draw_transcripts(mechanism, around(side), n, clock) for side in (pair.present, pair.absent)
                )
            except InputRefused as no:
                refusals.append((pair, str(no)))
                continue
            seen = effect_size(one, other, pair.axis), outcome_odds(one, other, errors)
            found.append(RankedPair(pair, *seen, mixed=not comes_back(one, other)))
        ranked = sorted(found, key=lambda one: -one.score) or ranked
        if len(ranked) <= keep:
            break
        errors = min(2 * errors, 2.0)
        kept, count = [one.pair for one in _best_pairs(ranked, max(keep, len(ranked) // 4))], count * 4
    return _best_pairs(ranked, keep), refusals


def _best_pairs(ranked: list[RankedPair], count: int) -> list[RankedPair]:
    """The ``count`` best; a third of the places are for those with the best odds, where there are any, and two, at most a
    third, for records that are alone."""
    chosen = rank_by_odds(ranked)[: count // 3]
    chosen += [one for one in pairs_of_record_alone(ranked)[: min(2, count // 3)] if one not in chosen]
    rest = [one for one in ranked if one not in chosen][: count - len(chosen)]
    return [one for one in ranked if one in chosen or one in rest]


def comes_back(present: Transcripts, absent: Transcripts) -> bool:
    """Whether whole outcomes do, as they do where no noise is continuous."""
    return sum(len(set(discrete_outcomes(block))) for block in (present, absent)) <= (len(present) + len(absent)) / 4


def outcome_odds(present: Transcripts, absent: Transcripts, errors: float) -> float:
    """The largest change of the log odds of one outcome, less ``errors`` standard errors; where none comes back, of one
    mark, such as a name, a shape or a flag; 0 where there is none."""
    if comes_back(present, absent):
        seen = [Counter(discrete_outcomes(block)) for block in (present, absent)]
        counts = np.array([[one[x] + 0.5 for one in seen] for x in seen[0] | seen[1]])
    elif (marks := ReleaseMarks.from_sides(present, absent, values=MIN_VALUES)) is not None:
        counts = np.stack([marks.find_marks(block).sum(0) + 0.5 for block in (present, absent)], 1)
    else:
        return 0.0
    change = np.abs(np.log(counts[:, 0] / counts[:, 1])) - errors * np.sqrt((1 / counts).sum(1))
    return max(0.0, float(change.max()))


def _transcript_cost(
    mechanism: BlackBox, pair: NeighbouringInputs, around: Callable[[Data], list[Data]], clock: CallBudget
) -> float:
    began = time.process_time()
    try:
        draw_transcripts(mechanism, around(pair.present), 3, clock)
    except InputRefused:
        return 1e-6
    return (time.process_time() - began) / 3


def effect_size(present: Transcripts, absent: Transcripts, axis: np.ndarray | None) -> float:
    """The largest effect of any statistic, in standard deviations: learned on one half, seen on the other."""
    first, second = zip(present.split_half(), absent.split_half())
    best = 0.0
    for how, statistic in learn_statistics(first[0], first[1], axis).items():
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

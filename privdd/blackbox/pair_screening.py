"""Neighbours ranked by how much a few transcripts of them show."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privdd.blackbox.budgets import CallBudget
from privdd.blackbox.distinguishers import learn_statistics
from privdd.blackbox.inputs import NeighbouringInputs, is_quiet, size_of_data
from privdd.blackbox.mechanism import BlackBox, Data, InputRefused
from privdd.blackbox.release_marks import (
    MIN_VALUES,
    ReleaseMarks,
    comes_back,
    discrete_outcomes,
)
from privdd.blackbox.transcripts import Transcripts, draw_transcripts

# transcripts a side in the first round; in any
FIRST = 96
LEAST = 8
GROWTH = 4  # more transcripts a round, of a quarter of the pairs
# standard errors taken off the odds in the first round, as a rare outcome has been seen a few
# times then, and in later ones
HOPEFUL = 0.5
CAREFUL = 2.0
NOTHING = 1e-6  # below every record that is tried
CERTAIN = 1e6  # the score of what is told apart without exception
NO_SPREAD = 1e-9  # of the gap: a smaller deviation is rounding
OTHER_STATISTICS = 0.7  # weight of statistics that are no shift


@dataclass(frozen=True, eq=False)
class RankedPair:
    """Neighbours with what a few transcripts showed.

    Attributes:
        pair: the neighbours.
        score: largest effect.
        odds: of outcomes that come back, how much more often one is seen on one side.
        mixed: whether these are marks beside noise.
    """

    pair: NeighbouringInputs
    score: float
    odds: float = 0.0
    mixed: bool = False


def rank_by_odds(ranked: Sequence[RankedPair]) -> list[RankedPair]:
    """Those whose outcomes come back with other odds, the best of each size of data first, then the
    second of each."""
    places: Counter[tuple[Any, ...]] = Counter()
    order: list[tuple[int, int, RankedPair]] = []
    with_odds = [item for item in ranked if item.odds > 0]
    for item in sorted(with_odds, key=lambda item: -item.odds):
        size = size_of_data(item.pair.present)
        order.append((places[size], len(order), item))
        places[size] += 1
    return [item for _, _, item in sorted(order, key=lambda row: row[:2])]


def pairs_of_record_alone(ranked: Sequence[RankedPair]) -> list[RankedPair]:
    """Those whose data hold nothing but the record: at the ends of a range a record shifts least,
    and its odds may be highest."""
    return [item for item in ranked if is_quiet(item.pair.absent, NOTHING)]


def screen_pairs(
    mechanism: BlackBox,
    pairs: Sequence[NeighbouringInputs],
    calls_of: Callable[[Data], list[Data]],
    budget: CallBudget,
    share: float,
    *,
    keep: int,
) -> tuple[list[RankedPair], list[tuple[NeighbouringInputs, str]]]:
    """The most promising pairs, by rounds: each has more transcripts of fewer pairs.

    Args:
        mechanism: what is called.
        pairs: neighbours, the most telling kinds first.
        calls_of: data -> the calls of a transcript.
        budget: whose share is spent.
        share: of the calls that are left.
        keep: pairs.

    Returns:
        (the ``keep`` best pairs, best first; the refused ones with their messages).

    Raises:
        OutOfTime: the budget is spent.
    """
    spendable = budget.split_share(mechanism, share)
    refusals: list[tuple[NeighbouringInputs, str]] = []
    rest = list(pairs)
    wanted = FIRST
    ranked = [RankedPair(pair, 0.0) for pair in pairs[:keep]]
    errors = HOPEFUL
    while rest:
        # a third of what is left for each round
        transcripts = spendable.calls_left(mechanism) / len(calls_of(rest[0].present)) / 3
        affordable = int(transcripts / (2 * LEAST))
        if affordable < 1:
            break
        if affordable < len(rest):
            rest = [rest[int(i)] for i in np.linspace(0, len(rest) - 1, affordable)]
        count = max(LEAST, min(wanted, int(transcripts / (2 * len(rest)))))
        screened = []
        for pair in rest:
            try:
                present = draw_transcripts(mechanism, calls_of(pair.present), count, budget)
                absent = draw_transcripts(mechanism, calls_of(pair.absent), count, budget)
            except InputRefused as refusal:
                refusals.append((pair, str(refusal)))
                continue
            screened.append(_rank(pair, present, absent, errors))
        ranked = sorted(screened, key=lambda item: -item.score) or ranked
        if len(ranked) <= keep:
            break
        errors = min(2 * errors, CAREFUL)
        best = best_pairs(ranked, max(keep, len(ranked) // 4))
        rest = [item.pair for item in best]
        wanted *= GROWTH
    return best_pairs(ranked, keep), refusals


def _rank(
    pair: NeighbouringInputs, present: Transcripts, absent: Transcripts, errors: float
) -> RankedPair:
    return RankedPair(
        pair,
        score=effect_size(present, absent, pair.axis),
        odds=outcome_odds(present, absent, errors),
        mixed=not comes_back(present, absent),
    )


def best_pairs(ranked: list[RankedPair], count: int) -> list[RankedPair]:
    """The ``count`` best; up to a third of the places are for the best odds, and two for records
    that are alone."""
    chosen = rank_by_odds(ranked)[: count // 3]
    for item in pairs_of_record_alone(ranked)[: min(2, count // 3)]:
        if item not in chosen:
            chosen.append(item)
    rest = [item for item in ranked if item not in chosen][: count - len(chosen)]
    return [item for item in ranked if item in chosen or item in rest]


def outcome_odds(present: Transcripts, absent: Transcripts, errors: float) -> float:
    """The largest change of the log odds of one outcome, or of one mark if none comes back.

    |ln((n + 1/2) / (m + 1/2))| - errors sqrt(1 / (n + 1/2) + 1 / (m + 1/2)) for counts n and m: the
    normal limit of a log ratio, as the largest ratio alone is that of the rarest outcome.

    Args:
        present: transcripts with the record.
        absent: as many without it.
        errors: standard errors to take off.

    Returns:
        At least 0.
    """
    counts = _outcome_counts(present, absent)
    if counts is None:
        return 0.0
    log_ratio = np.abs(np.log(counts[:, 0] / counts[:, 1]))
    change = log_ratio - errors * np.sqrt((1 / counts).sum(1))
    return max(0.0, float(change.max()))


def _outcome_counts(present: Transcripts, absent: Transcripts) -> np.ndarray | None:
    """(outcomes, 2) counts of either side, 1/2 added; None if nothing comes back."""
    if comes_back(present, absent):
        with_record = Counter(discrete_outcomes(present))
        without_record = Counter(discrete_outcomes(absent))
        outcomes = with_record | without_record
        return np.array([[with_record[x] + 0.5, without_record[x] + 0.5] for x in outcomes])
    marks = ReleaseMarks.from_sides(present, absent, values=MIN_VALUES)
    if marks is None:
        return None
    columns = [marks.find_marks(block).sum(0) + 0.5 for block in (present, absent)]
    return np.stack(columns, 1)


def effect_size(present: Transcripts, absent: Transcripts, axis: np.ndarray | None) -> float:
    """The largest effect |mean a - mean b| / sqrt((var a + var b) / 2) of any statistic (Cohen's
    d): learned on one half, looked up on the other. No p-value, as all pairs have as many
    transcripts.

    Args:
        present: transcripts with the record.
        absent: transcripts without it.
        axis: direction of the record, if it is known.
    """
    first_present, second_present = present.split_half()
    first_absent, second_absent = absent.split_half()
    best = 0.0
    for how, statistic in learn_statistics(first_present, first_absent, axis).items():
        a = statistic(second_present)
        b = statistic(second_absent)
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            continue
        gap = abs(float(a.mean() - b.mean()))
        spread = math.sqrt((float(a.var()) + float(b.var())) / 2)
        if spread > NO_SPREAD * gap:
            weight = 1.0 if how.startswith("shift") else OTHER_STATISTICS
            effect = min(gap / spread, CERTAIN) * weight
        else:
            effect = CERTAIN if gap else 0.0
        best = max(best, effect)
    return best

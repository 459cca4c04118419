"""Low bits of floating-point numbers that tell a record from its absence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from attacks.epsilon import best_threshold, from_scores
from attacks.low_bits import lowest_set_bits
from attacks.statistics import shared_confidence
from privdd.blackbox.budgets import CallBudget
from privdd.blackbox.check_report import SingleTestResult
from privdd.blackbox.claims import CheckedClaim
from privdd.blackbox.inputs import InputShapes, NeighbouringInputs
from privdd.blackbox.mechanism import BlackBox, InputRefused
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.transcripts import Sides, Transcripts, draw_transcripts

NAME = "low bits"
CALLS = 4000  # of each side, if the statement is about low bits
CONDITION_CALLS = 600  # if they only are a condition
TRIED = 6  # pairs
FEW = 0.1  # different values for each call: fewer are outcomes that come back
CONDITION_SHARE = 0.05  # of the calls left, spent if low bits only are a condition
TELLS = "low-order bits of the released numbers reveal the record"


@dataclass(frozen=True)
class LowBitBound:
    """epsilon: the largest lower bound on the pairs that were looked at; inputs: of that pair;
    looked: pairs, of ``pairs`` that were chosen."""

    epsilon: float
    inputs: str
    looked: int
    pairs: int


def check_low_bits(
    mechanism: BlackBox,
    claim: CheckedClaim,
    inputs: InputShapes,
    budget: CallBudget,
    confidence: float,
) -> list[SingleTestResult]:
    """One row: whether low bits alone tell a record from its absence.

    x + noise in floating point keeps the grid of x if they nearly cancel (Mironov 2012; Jin et al.
    2022). Unless a statement says ``stated.low_bits=true``, it is taken to be about real numbers,
    and this is a condition of it.

    Args:
        mechanism: what is called.
        claim: the statement.
        inputs: sizes of inputs.
        budget: that may be spent.
        confidence: of all bounds of this row together.

    Raises:
        OutOfTime: the budget is spent.
    """
    bound = _bound_low_bits(mechanism, claim, inputs, budget, confidence)
    if claim.low_bits:
        if bound.epsilon > claim.refutation_limit:
            outcome = "refuted"
        else:
            outcome = "not refuted"
        return [
            SingleTestResult(NAME, outcome, TELLS, bound.epsilon, "finite_sample", bound.inputs)
        ]
    if bound.epsilon > 0:
        says = f"{TELLS}: the statement holds for real numbers"
        return [
            SingleTestResult(NAME, "condition", says, bound.epsilon, "finite_sample", bound.inputs)
        ]
    says = "no bit was seen to reveal anything"
    if bound.looked < bound.pairs:
        says += f"; {bound.looked} of {bound.pairs} pairs of inputs were tested"
    return [SingleTestResult(NAME, "not refuted", says)]


def _bound_low_bits(
    mechanism: BlackBox,
    claim: CheckedClaim,
    inputs: InputShapes,
    budget: CallBudget,
    confidence: float,
) -> LowBitBound:
    pairs = _revealing_pairs(mechanism, claim, inputs)
    count = CALLS if claim.low_bits else CONDITION_CALLS
    share = budget.split_share(mechanism, CONDITION_SHARE)
    level = shared_confidence(confidence, 2 * TRIED)
    best = (0.0, "")
    looks = 0
    for pair in pairs:
        if looks and not claim.low_bits and share.is_spent(mechanism):
            break
        looks += 1
        sides = _draw_sides(mechanism, pair, count, budget)
        if sides is None or not (claim.low_bits or _varies(sides, count)):
            continue
        for epsilon in _epsilons_of_bits(pair, sides, claim.delta, level):
            best = max(best, (epsilon, pair.says))
    return LowBitBound(best[0], best[1], looks, len(pairs))


def _revealing_pairs(
    mechanism: BlackBox, claim: CheckedClaim, inputs: InputShapes
) -> list[NeighbouringInputs]:
    """Pairs of few numbers, of which the record is one, or else the first pair."""
    small = replace(inputs, structures=inputs.structures[-1:], tables=inputs.tables[:1])
    pairs = neighbouring_pairs(mechanism.kind, claim.relation, small)
    return [pair for pair in pairs if "one number" in pair.says][:TRIED] or pairs[:1]


def _draw_sides(
    mechanism: BlackBox, pair: NeighbouringInputs, count: int, budget: CallBudget
) -> Sides | None:
    """None if the inputs are refused, or the releases differ in size or hold no number."""
    try:
        present = draw_transcripts(mechanism, [pair.present], count, budget)
        absent = draw_transcripts(mechanism, [pair.absent], count, budget)
    except InputRefused:
        return None
    if present.rows.shape != absent.rows.shape or not present.rows.size:
        return None
    return present, absent


def _varies(sides: Sides, count: int) -> bool:
    """Whether any side has many values: a choice among a few is no sum that was rounded."""
    return any(len(np.unique(side.rows)) > FEW * count for side in sides)


def _epsilons_of_bits(
    pair: NeighbouringInputs, sides: Sides, delta: float, confidence: float
) -> Iterator[float]:
    """Two lower bounds on epsilon, one for each sign of the score: the position of the lowest set
    bit.

    ln((TPR_low - delta) / FPR_high) at a threshold that the first half of the scores suggests, with
    Clopper and Pearson's limits of both shares in the second half: any statistic may be bounded so,
    as nothing is assumed of its law.
    """
    present, absent = (_lowest_bits(pair, side) for side in sides)
    count = len(present)
    half = count // 2
    first = np.concatenate([present[:half], absent[:half]])
    second = np.concatenate([present[half:], absent[half:]])
    first_members = np.arange(2 * half) < half
    second_members = np.arange(2 * (count - half)) < count - half
    for sign in (1.0, -1.0):
        threshold = best_threshold(sign * first, first_members, delta)
        bound = from_scores(
            sign * second,
            second_members,
            delta=delta,
            confidence=confidence,
            thresholds=[threshold],
        )
        yield bound.value


def _lowest_bits(pair: NeighbouringInputs, side: Transcripts) -> np.ndarray:
    """(n,): of each release the least position of a lowest set bit."""
    numbers = side.rows[:, 0]
    if numbers.shape[1] == len(pair.axis):  # the number in which the record is largest
        numbers = numbers[:, [int(np.argmax(np.abs(pair.axis)))]]
    bits = lowest_set_bits(numbers)  # type: ignore[arg-type]
    return np.asarray(bits).min(1)

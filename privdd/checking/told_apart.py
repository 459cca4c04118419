"""Two inputs told apart: a bound for any mechanism, from errors counted on transcripts that nothing was learned on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attacks.epsilon import best_threshold, from_scores
from privdd.checking.learned import OF_ANY_SIZE, statistics
from privdd.checking.sampled import Block

LEVEL = 0.9  # of the bounds that statistics are compared by, on the transcripts that they were learned on


@dataclass(frozen=True)
class Apart:
    """epsilon: lower bound at the asked confidence; how: by which statistic; transcripts: of both sides that judged it."""

    epsilon: float
    how: str
    transcripts: int


@dataclass(frozen=True)
class Rule:
    """A statistic with its threshold and sign, fixed before it is judged."""

    how: str
    sign: float
    threshold: float
    promise: float


def _scores(values: np.ndarray, others: np.ndarray, sign: float) -> tuple[np.ndarray, np.ndarray]:
    both = sign * np.concatenate([values, others])
    return both, np.arange(len(both)) < len(values)


def best_rule(present: Block, absent: Block, axis: np.ndarray | None, delta: float) -> tuple[Rule, dict]:
    """The most promising rule, and the statistics: learned on the first halves, compared on the second."""
    half, other = len(present) // 2, len(absent) // 2
    first = [_part(block, slice(0, h)) for block, h in ((present, half), (absent, other))]
    second = [_part(block, slice(h, None)) for block, h in ((present, half), (absent, other))]
    made = statistics(first[0], first[1], axis)
    best = Rule("", 1.0, 0.0, -1.0)
    for how, statistic in made.items():
        a, b = statistic(second[0]), statistic(second[1])
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            continue
        for sign in (1.0, -1.0):
            scores, inside = _scores(a, b, sign)
            at = best_threshold(scores, inside, delta)
            bound = from_scores(scores, inside, delta=delta, confidence=LEVEL, thresholds=[at]).value
            promise = bound if bound > 0 else -1 + abs(float((a * sign >= at).mean() - (b * sign >= at).mean()))
            if promise > best.promise:
                best = Rule(how, sign, at, promise)
    return best, made


def told_apart(
    trained: tuple[Block, Block],
    fresh: tuple[Block, Block],
    axis: np.ndarray | None,
    *,
    delta: float,
    confidence: float,
) -> Apart:
    """A finite-sample bound from ``fresh`` transcripts (Clopper-Pearson), by the rule that ``trained`` ones suggest."""
    rule, made = best_rule(trained[0], trained[1], axis, delta)
    if rule.how not in made:
        return Apart(0.0, "nothing", 0)
    if rule.how not in OF_ANY_SIZE and len({block.rows.shape[1:] for block in (*trained, *fresh)}) > 1:
        return Apart(0.0, "nothing", 0)
    a, b = (made[rule.how](block) for block in fresh)
    scores, inside = _scores(np.nan_to_num(a), np.nan_to_num(b), rule.sign)
    bound = from_scores(scores, inside, delta=delta, confidence=confidence, thresholds=[rule.threshold])
    return Apart(bound.value, rule.how, len(scores))


def _part(block: Block, which: slice) -> Block:
    return Block(block.rows[which], block.codes[which])

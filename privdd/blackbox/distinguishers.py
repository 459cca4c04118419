"""Statistics that tell two inputs apart: learned on some transcripts, judged on others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import logsumexp

from attacks.epsilon import best_threshold, from_scores
from privdd.blackbox.budgets import BoundLevel
from privdd.blackbox.noise_metric import NoiseMetric, shift_directions
from privdd.blackbox.release_marks import (
    ReleaseMarks,
    Statistic,
    comes_back,
    discrete_outcomes,
    learn_odds,
)
from privdd.blackbox.transcripts import PairSample, Transcripts, transcript_totals

PRODUCTS = 24  # numbers of a transcript up to which their products are looked at too
ROUNDING = 1e-9  # of the largest number: pieces that hold the same noise differ in less
STEPS = (1.0, 2.0, 4.0)  # shifts of one call, in deviations
# of the bounds that statistics are compared by, on the transcripts that they were learned on
PILOT_CONFIDENCE = 0.9
# names of statistics
WHOLE = "odds of the marks"
PARTS = "odds of each mark"
WORDS = "odds of the words"
EACH_WORD = "odds of each word"
WORDLESS = "non-numeric parts"
# they look at no numbers: releases of another size than the usual one may be chance
OF_ANY_SIZE = {WORDLESS, WORDS, EACH_WORD}


def learn_statistics(
    present: Transcripts, absent: Transcripts, axis: np.ndarray | None
) -> dict[str, Statistic]:
    """Statistics that may be larger, or smaller, with the record.

    Args:
        present: training transcripts with the record.
        absent: the same without it.
        axis: direction of the record, if it is known.

    Returns:
        Name -> statistic.
    """
    usual = present.most_common_code
    statistics: dict[str, Statistic] = {
        WORDLESS: lambda block: np.array([code == usual for code in block.codes], float)
    }
    statistics |= _mark_statistics(present, absent)
    if present.rows.shape[1:] != absent.rows.shape[1:] or not present.rows.shape[2]:
        return statistics
    for index, direction in enumerate(shift_directions(present, absent, axis)):
        statistics[f"shift {index}"] = partial(_project, direction=direction)
    statistics |= _standardised_statistics(absent)
    statistics |= _single_call_statistics(present, absent, axis)
    statistics |= _product_statistics(present, absent)
    statistics |= _value_statistics(present, absent)
    statistics |= _weighted_call_statistics(present, absent, axis)
    return statistics


def _project(block: Transcripts, direction: np.ndarray) -> np.ndarray:
    """w . x for the sum x over a transcript's calls."""
    return transcript_totals(block) @ direction


def _mark_statistics(present: Transcripts, absent: Transcripts) -> dict[str, Statistic]:
    marks = ReleaseMarks.from_sides(present, absent)
    if marks is None:
        return {}
    words = replace(marks, atoms=())
    statistics = {
        WORDS: words.odds_of_all(present, absent),
        EACH_WORD: words.odds_of_each(present, absent),
    }
    if marks.atoms:
        statistics[WHOLE] = marks.odds_of_all(present, absent)
        statistics[PARTS] = marks.odds_of_each(present, absent)
    return statistics


def _standardised_statistics(absent: Transcripts) -> dict[str, Statistic]:
    """Of z = (x - mean) / std over all numbers and calls: sum z^2, max z, min z and min |z|, which
    see other noise, one number that is moved, and a number without noise."""
    metric = NoiseMetric.from_sides(absent.rows.reshape(-1, absent.rows.shape[2]))

    def standardise(block: Transcripts) -> np.ndarray:
        return np.asarray((block.rows - metric.centre) / metric.std)

    return {
        "energy": lambda block: np.square(standardise(block)).sum((1, 2)),
        "largest number": lambda block: standardise(block).max((1, 2)),
        "smallest number": lambda block: standardise(block).min((1, 2)),
        "weakest number": lambda block: np.abs(standardise(block)).min((1, 2)),
    }


def _value_statistics(present: Transcripts, absent: Transcripts) -> dict[str, Statistic]:
    """Numbers that come back exactly, as no continuous noise lets them: the share of them, and the
    odds of each outcome."""
    width = present.rows.shape[2]
    numbers_present = present.rows.reshape(-1, width)
    numbers_absent = absent.rows.reshape(-1, width)
    known_values = []
    for at in range(width):
        values = np.unique(numbers_present[:, at])
        repeats = len(values) < len(numbers_present)
        if repeats or len(np.unique(numbers_absent[:, at])) < len(numbers_absent):
            known_values.append((at, values))
    if not known_values:
        return {}

    def share_of_known(block: Transcripts) -> np.ndarray:
        shares = [np.isin(block.rows[:, :, at], values).mean(1) for at, values in known_values]
        return np.asarray(np.mean(shares, axis=0))

    statistics: dict[str, Statistic] = {"values that come back": share_of_known}
    if comes_back(present, absent):
        statistics["odds of the outcome"] = learn_odds(present, absent, discrete_outcomes)
    return statistics


def _product_statistics(present: Transcripts, absent: Transcripts) -> dict[str, Statistic]:
    """Fisher's direction Sigma^-1 (mean a - mean b) over the numbers and their products: a flag
    that says whether to look, or noise that correlates."""
    if present.rows[0].size > PRODUCTS:
        return {}
    centre = NoiseMetric.from_sides(absent.rows.reshape(len(absent), -1)).centre
    first, second = np.triu_indices(len(centre))

    def numbers_and_products(block: Transcripts) -> np.ndarray:
        flat = block.rows.reshape(len(block), -1) - centre
        return np.concatenate([flat, flat[:, first] * flat[:, second]], axis=1)

    a = numbers_and_products(present)
    b = numbers_and_products(absent)
    direction = NoiseMetric.from_sides(a, b).whiten_vector(a.mean(0) - b.mean(0))
    if not np.isfinite(direction).all():
        return {}
    return {"numbers and their products": lambda block: numbers_and_products(block) @ direction}


def _weighted_call_statistics(
    present: Transcripts, absent: Transcripts, axis: np.ndarray | None
) -> dict[str, Statistic]:
    """Calls that have less noise than others, or share theirs, count for more than in the sum:
    Fisher's direction over the calls' projections."""
    if present.rows.shape[1] < 2:
        return {}
    statistics: dict[str, Statistic] = {}
    for index, direction in enumerate(shift_directions(present, absent, axis)[:2]):
        a = present.rows @ direction
        b = absent.rows @ direction
        weights = NoiseMetric.from_sides(a, b).whiten_vector(a.mean(0) - b.mean(0))
        if np.isfinite(weights).all() and weights.any():
            weights /= np.linalg.norm(weights)
            statistics[f"shift {index}, calls weighed"] = partial(
                _project_calls, direction=direction, weights=weights
            )
    return statistics


def _project_calls(block: Transcripts, direction: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (block.rows @ direction) @ weights


def _single_call_statistics(
    present: Transcripts, absent: Transcripts, axis: np.ndarray | None
) -> dict[str, Statistic]:
    """For transcripts of several calls, or calls that return several rows: the row that holds the
    record.

    ln sum_t exp(s z_t) for standardised projections z_t of the rows, and steps s: up to a constant
    the log likelihood ratio if one row of normal noise, any of them, is shifted by s deviations.
    """
    width = present.rows.shape[2]
    if axis is None:
        return {}
    fits = width % len(axis) == 0
    size = len(axis) if fits else width
    if present.rows.shape[1] * width == size:
        return {}
    if size == len(axis):
        direction = axis
    else:
        direction = (present.rows - absent.rows[: len(present)]).mean((0, 1))

    def project_rows(block: Transcripts) -> np.ndarray:
        return block.rows.reshape(len(block), -1, size) @ direction

    projections = project_rows(absent)
    centre = projections.mean(0)
    spread = float(projections.std(0).mean()) or 1.0
    least = ROUNDING * float(np.abs(projections).max(initial=0.0)) or 1.0

    def one_call_shifted(block: Transcripts, step: float) -> np.ndarray:
        return logsumexp(step * (project_rows(block) - centre) / spread, axis=1)

    statistics: dict[str, Statistic] = {
        "largest call": lambda block: (project_rows(block) - centre).max(1),
        "smallest call": lambda block: (project_rows(block) - centre).min(1),
        # low bits have a look of their own
        "spread over calls": lambda block: np.round(project_rows(block).std(1) / least),
    }
    for step in STEPS:
        statistics[f"one call shifted by {step:g}"] = partial(one_call_shifted, step=step)
    return statistics


@dataclass(frozen=True)
class DistinguishingBound:
    """epsilon: lower bound at the confidence that was asked for; how: by which statistic;
    transcripts: of both sides that judged it."""

    epsilon: float
    how: str
    transcripts: int


@dataclass(frozen=True)
class DecisionRule:
    """A statistic with its threshold and sign, fixed before it is judged. promise: its bound on the
    training transcripts, below 0 if it has none."""

    how: str
    sign: float
    threshold: float
    promise: float


def _scores_and_members(
    present: np.ndarray, absent: np.ndarray, sign: float
) -> tuple[np.ndarray, np.ndarray]:
    """((n + m,) scores, (n + m,) bool: whether the record is there)."""
    scores = sign * np.concatenate([present, absent])
    return scores, np.arange(len(scores)) < len(present)


def choose_rule(
    present: Transcripts, absent: Transcripts, axis: np.ndarray | None, delta: float
) -> tuple[DecisionRule, dict[str, Statistic]]:
    """The most promising rule: learned on the first halves, compared on the second.

    Args:
        present: training transcripts with the record.
        absent: the same without it.
        axis: direction of the record, if it is known.
        delta: in [0, 1).

    Returns:
        (the rule, all statistics by name).
    """
    first_present, second_present = present.split_half()
    first_absent, second_absent = absent.split_half()
    statistics = learn_statistics(first_present, first_absent, axis)
    best = DecisionRule("", 1.0, 0.0, -1.0)
    for how, statistic in statistics.items():
        a = statistic(second_present)
        b = statistic(second_absent)
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            continue
        for sign in (1.0, -1.0):
            rule = _rule_of(how, a, b, sign, delta)
            if rule.promise > best.promise:
                best = rule
    return best, statistics


def _rule_of(
    how: str, present: np.ndarray, absent: np.ndarray, sign: float, delta: float
) -> DecisionRule:
    """The best threshold of a statistic, with its bound as the promise; without a bound the
    difference of both shares beyond it, less 1, orders the rules."""
    scores, is_member = _scores_and_members(present, absent, sign)
    threshold = best_threshold(scores, is_member, delta)
    bound = from_scores(
        scores, is_member, delta=delta, confidence=PILOT_CONFIDENCE, thresholds=[threshold]
    )
    promise = bound.value
    if promise <= 0:
        true_positives = (present * sign >= threshold).mean()
        false_positives = (absent * sign >= threshold).mean()
        promise = -1 + abs(float(true_positives - false_positives))
    return DecisionRule(how, sign, threshold, promise)


def bound_by_distinguishing(pair: PairSample, level: BoundLevel) -> DistinguishingBound:
    """A finite-sample bound from the fresh transcripts, by the rule that the others suggest.

    ln((TPR_low - delta) / FPR_high) with Clopper and Pearson's limits of both shares, of a rule
    that was fixed before: exact at any number of transcripts, for any mechanism and any statistic.

    Args:
        pair: transcripts of neighbours, to learn from and to judge by.
        level: delta and confidence.
    """
    rule, statistics = choose_rule(*pair.trained, pair.axis, level.delta)
    shapes = {block.rows.shape[1:] for block in (*pair.trained, *pair.fresh)}
    fits = rule.how in OF_ANY_SIZE or len(shapes) == 1
    if rule.how not in statistics or not fits:
        return DistinguishingBound(0.0, "nothing", 0)
    statistic = statistics[rule.how]
    present, absent = (np.nan_to_num(statistic(block)) for block in pair.fresh)
    scores, is_member = _scores_and_members(present, absent, rule.sign)
    bound = from_scores(
        scores,
        is_member,
        delta=level.delta,
        confidence=level.confidence,
        thresholds=[rule.threshold],
    )
    return DistinguishingBound(bound.value, rule.how, len(scores))

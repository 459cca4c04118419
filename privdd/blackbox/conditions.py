"""Conditions under which a statement holds: non-finite inputs, declared noise, low bits of floating-point numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from attacks.epsilon import best_threshold, from_scores
from attacks.low_bits import lowest_set_bits
from attacks.statistics import shared_confidence
from privdd.blackbox.claim import TINY, CheckedClaim
from privdd.blackbox.inputs import (
    InputShapes,
    NeighbouringInputs,
    neighbouring_pairs,
    scaled_data,
    with_nonfinite_number,
)
from privdd.blackbox.mechanism import BlackBox, CallBudget, Data, InputRefused, draw_transcripts
from privdd.blackbox.noise_laws import noise_law
from privdd.blackbox.verdict import SingleTestResult
from privdd.privacy.accounting import bound_batch_epsilon

CONDITION_CALLS = 30
FAILED = 10  # calls on each side of a pair that was refused
PAIRS = 3  # of those
SCALAR = ((), (5,))  # shapes of an update with a number of no dimensions, such as a counter of batch normalisation


def check_nonfinite_inputs(
    mechanism: BlackBox, stated: CheckedClaim, tried: InputShapes, clock: CallBudget
) -> list[SingleTestResult]:
    """Whether a record with NaN or infinity shows in the release in every call, and never without it."""
    found = _check_scalars(mechanism, tried, clock) if mechanism.kind != "records" else []
    if stated.inputs == "any":
        return found  # NaN and infinity were among the neighbours
    pair = neighbouring_pairs(mechanism.kind, stated.relation, tried)[0]
    for value, name in ((np.nan, "NaN"), (np.inf, "infinity")):
        now = with_nonfinite_number(pair, mechanism.kind, value)
        try:
            sides = [draw_transcripts(mechanism, [side], CONDITION_CALLS, clock) for side in (now.present, now.absent)]
        except InputRefused as no:
            found.append(SingleTestResult(f"a record with {name}", "not refuted", f"is refused: {no}", inputs=now.says))
            continue
        codes = [Counter(block.codes) for block in sides]
        if not codes[0].keys() & codes[1].keys():
            says = f"a record with {name} shows in every release; without it none does: numbers must be finite"
            found.append(SingleTestResult("finite inputs", "condition", says, inputs=now.says))
            break
    return found


def check_failures(
    mechanism: BlackBox, refused: Sequence[NeighbouringInputs], clock: CallBudget
) -> list[SingleTestResult]:
    """Whether calls fail on some inputs and never on their neighbours: the failure is an answer without noise."""
    for pair in refused[:PAIRS]:
        present, absent = (_failure_messages(mechanism, side, clock) for side in (pair.present, pair.absent))
        if sorted((len(present), len(absent))) == [0, FAILED]:
            says = f"calls fail on some inputs and not on their neighbours ({(present or absent)[0]}): inputs must be such that none fails"
            return [SingleTestResult("inputs without failures", "condition", says, inputs=pair.says)]
    return []


def _failure_messages(mechanism: BlackBox, data: Data, clock: CallBudget) -> list[str]:
    """What was said in those of ``FAILED`` calls that failed."""
    said = []
    for _ in range(FAILED):
        try:
            draw_transcripts(mechanism, [data], 1, clock)
        except InputRefused as no:
            said.append(str(no))
    return said


def _check_scalars(mechanism: BlackBox, tried: InputShapes, clock: CallBudget) -> list[SingleTestResult]:
    """Whether numbers of no dimensions come out without noise where arrays have some."""
    one = replace(tried, structures=(SCALAR,))
    try:
        blocks = [
            draw_transcripts(mechanism, [scaled_data(mechanism.kind, one, size)], CONDITION_CALLS, clock)
            for size in (1.0, 2.0)
        ]
    except InputRefused:
        return []
    first, second = (block.rows[:, 0] for block in blocks)
    if first.shape != second.shape or first.shape[1] < 2:
        return []
    noise = np.ptp(first, axis=0)
    if noise[0] == 0 and noise[1:].max() > 0 and first[0, 0] != second[0, 0]:
        says = "an array of no dimensions (a scalar) is released without noise: arrays must have at least one dimension"
        return [SingleTestResult("scalars", "condition", says, inputs="an update of shapes (), (5,)")]
    return []


DECLARED_CALLS = 1500
ROUNDING = 0.98  # of the declared scale: what a printed number may be off by


def check_declared_noise(
    mechanism: BlackBox, stated: CheckedClaim, tried: InputShapes, clock: CallBudget, confidence: Callable[[], float]
) -> list[SingleTestResult]:
    """Rows for the declared law and scale of each number's noise; none where nothing is declared. confidence: -> that of
    the next test."""
    if stated.noise is None and stated.noise_std is None:
        return []
    try:
        block = draw_transcripts(mechanism, [scaled_data(mechanism.kind, tried, 1.0)], DECLARED_CALLS, clock)
    except InputRefused:
        return []
    values = block.rows[:, 0]
    residuals = values - values.mean(0)
    found, law = [], noise_law(residuals)
    if stated.noise is not None:
        confidence()  # the law's test takes its share too
        outcome = "not refuted" if law == stated.noise else "refuted"
        says = f"noise of the {stated.noise} law is declared, and its law is {law}"
        found.append(SingleTestResult("law of the noise", outcome, says, strength="finite_sample"))
    if stated.noise_std is not None:
        std = residuals.std(0, ddof=1)
        least = int(np.argmin(std))
        width = math.sqrt(_fourth_moment(stated.noise or law, residuals) - 1.0)  # of a sum of squares
        tail = stats.norm.isf((1 - confidence()) / len(std))
        highest = float(std[least]) ** 2 * (1 + tail * width / math.sqrt(DECLARED_CALLS))
        outcome = "refuted" if highest < (ROUNDING * stated.noise_std) ** 2 else "not refuted"
        says = f"the noise of number {least} has standard deviation {std[least]:.4g}; {stated.noise_std:g} is declared"
        found.append(SingleTestResult("scale of the noise", outcome, says, strength="finite_sample"))
    return found


def check_declared_batches(stated: CheckedClaim) -> list[SingleTestResult]:
    """A row for batches that are no Poisson samples, as they are declared; none where nothing is. The mechanism is not called."""
    if stated.sampling is None or stated.noise_multiplier is None:
        return []
    formed: dict[str, Any] = {name: getattr(stated, name) for name in ("sampling", "batches", "epochs")}
    low, high = bound_batch_epsilon(stated.noise_multiplier, max(stated.delta, TINY), **formed)
    says = f"of {stated.sampling.replace('_', ' ')} batches, {stated.batches} in each of {stated.epochs} epochs, epsilon is {low:.4g} to {high:.4g}"
    outcome = "refuted" if low > stated.refutation_limit else "not refuted"
    return [SingleTestResult("declared batches", outcome, says, low, "declared")]


def _fourth_moment(law: str, residuals: np.ndarray) -> float:
    """Of noise of this law, at deviation 1; of another law twice that of all residuals (n, m), which saw little of a heavy
    tail."""
    std = residuals.std(0)
    if law in ("gaussian", "laplace") or not std.any():
        return 6.0 if law == "laplace" else 3.0
    return 2 * float(np.mean((residuals[:, std > 0] / std[std > 0]) ** 4))


LOW_BIT_CALLS = 4000
SHOWN = 600  # where it only is a condition
TRIED = 6  # pairs
FEW = 0.1  # different values for each call: fewer are outcomes that come back
LOW_BIT_SHARE = 0.05  # of the time or the calls left, spent where it only is a condition


def check_low_bits(
    mechanism: BlackBox, stated: CheckedClaim, tried: InputShapes, clock: CallBudget, confidence: float
) -> list[SingleTestResult]:
    """One row: whether low bits alone tell a record from its absence. x + noise in floating point keeps the grid of x
    where they nearly cancel (Mironov 2012; Jin et al. 2022). Unless a statement says ``stated.low_bits=true``, it is
    taken to be about real numbers, and this is a condition of it."""
    small = replace(tried, structures=tried.structures[-1:], tables=tried.tables[:1])  # few numbers: the record is most
    every = neighbouring_pairs(mechanism.kind, stated.relation, small)
    chosen = [p for p in every if "one number" in p.says][:TRIED] or every[:1]
    count = LOW_BIT_CALLS if stated.low_bits else SHOWN
    best, budget, looked = (0.0, ""), clock.split_share(mechanism, LOW_BIT_SHARE), 0
    for pair in chosen:
        if looked and not stated.low_bits and budget.is_spent(mechanism):
            break
        looked += 1
        try:
            sides = [draw_transcripts(mechanism, [side], count, clock) for side in (pair.present, pair.absent)]
        except InputRefused:
            continue
        if sides[0].rows.shape != sides[1].rows.shape or not sides[0].rows.size:
            continue
        if not stated.low_bits and all(len(np.unique(side.rows)) <= FEW * count for side in sides):
            continue  # a choice among a few values is no sum that was rounded
        numbers = [block.rows[:, 0] for block in sides]
        if numbers[0].shape[1] == len(pair.axis):  # that in which the record is largest
            numbers = [rows[:, [int(np.argmax(np.abs(pair.axis)))]] for rows in numbers]
        scores = [np.asarray(lowest_set_bits(rows)).min(1) for rows in numbers]  # type: ignore[arg-type]
        half, level = count // 2, shared_confidence(confidence, 2 * TRIED)
        first, second = (np.concatenate([s[w] for s in scores]) for w in (slice(half), slice(half, None)))
        inside = [np.arange(2 * n) < n for n in (half, count - half)]
        for sign in (1.0, -1.0):
            at = best_threshold(sign * first, inside[0], stated.delta)
            bound = from_scores(sign * second, inside[1], delta=stated.delta, confidence=level, thresholds=[at])
            best = max(best, (bound.value, pair.says))
    says = "the lowest bits of the released numbers tell the record from its absence"
    if stated.low_bits:
        outcome = "refuted" if best[0] > stated.refutation_limit else "not refuted"
        return [SingleTestResult("low bits", outcome, says, best[0], "finite_sample", best[1])]
    if best[0] > 0:
        says = f"{says}: the statement holds for real numbers"
        return [SingleTestResult("low bits", "condition", says, best[0], "finite_sample", best[1])]
    left = f"; {looked} of {len(chosen)} pairs of inputs were looked at" if looked < len(chosen) else ""
    return [SingleTestResult("low bits", "not refuted", f"no bit was seen to tell anything{left}")]

"""Conditions under which a statement holds: finite inputs, inputs without failures, real
numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from privdd.blackbox.budgets import CallBudget
from privdd.blackbox.check_report import SingleTestResult
from privdd.blackbox.check_run import CheckRun
from privdd.blackbox.claims import CheckedClaim
from privdd.blackbox.inputs import (
    InputShapes,
    NeighbouringInputs,
    scaled_data,
    with_nonfinite_number,
)
from privdd.blackbox.low_bits import check_low_bits
from privdd.blackbox.mechanism import BlackBox, Data, InputRefused
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.transcripts import draw_transcripts

CONDITION_CALLS = 30
FAILED = 10  # calls on each side of a pair that was refused
PAIRS = 3  # of those
# shapes of an update with a number of no dimensions, such as a counter of batch normalisation
SCALAR = ((), (5,))


def examine_conditions(run: CheckRun) -> None:
    """Non-finite inputs, failures, and low bits unless the statement is refuted anyway."""
    examine_nonfinite_inputs(run)
    run.report.looks += check_failures(run.mechanism, run.refused, run.budget)
    if run.claim.low_bits or not run.report.is_refuted:
        confidence = run.errors.next_confidence()
        run.report.looks += check_low_bits(
            run.mechanism, run.claim, run.inputs, run.budget, confidence
        )


def examine_nonfinite_inputs(run: CheckRun) -> None:
    """Records with NaN or infinity, and arrays of no dimensions."""
    run.report.looks += check_nonfinite_inputs(run.mechanism, run.claim, run.inputs, run.budget)


def check_nonfinite_inputs(
    mechanism: BlackBox, claim: CheckedClaim, inputs: InputShapes, budget: CallBudget
) -> list[SingleTestResult]:
    """Whether a record with NaN or infinity shows in the release in every call, and never without
    it. Raises OutOfTime."""
    results: list[SingleTestResult] = []
    if mechanism.kind != "records":
        results += _check_scalars(mechanism, inputs, budget)
    if claim.inputs == "any":
        return results  # NaN and infinity were among the neighbours
    finite_pair = neighbouring_pairs(mechanism.kind, claim.relation, inputs)[0]
    for value, name in ((np.nan, "NaN"), (np.inf, "infinity")):
        pair = with_nonfinite_number(finite_pair, mechanism.kind, value)
        try:
            present = draw_transcripts(mechanism, [pair.present], CONDITION_CALLS, budget)
            absent = draw_transcripts(mechanism, [pair.absent], CONDITION_CALLS, budget)
        except InputRefused as refusal:
            says = f"is refused: {refusal}"
            input_name = f"a record with {name}"
            results.append(SingleTestResult(input_name, "not refuted", says, inputs=pair.says))
            continue
        if not set(present.codes) & set(absent.codes):
            says = (
                f"a record with {name} shows in every release; without it none does: numbers "
                "must be finite"
            )
            results.append(SingleTestResult("finite inputs", "condition", says, inputs=pair.says))
            break
    return results


def check_failures(
    mechanism: BlackBox, refused: Sequence[NeighbouringInputs], budget: CallBudget
) -> list[SingleTestResult]:
    """Whether calls fail on some inputs and never on their neighbours: the failure is an answer
    without noise. Raises OutOfTime."""
    for pair in refused[:PAIRS]:
        present = _failure_messages(mechanism, pair.present, budget)
        absent = _failure_messages(mechanism, pair.absent, budget)
        if sorted((len(present), len(absent))) == [0, FAILED]:
            says = (
                "calls fail on some inputs and not on their neighbours "
                f"({(present or absent)[0]}): inputs must be such that none fails"
            )
            return [
                SingleTestResult("inputs without failures", "condition", says, inputs=pair.says)
            ]
    return []


def _failure_messages(mechanism: BlackBox, data: Data, budget: CallBudget) -> list[str]:
    """Messages of those of ``FAILED`` calls that failed."""
    messages = []
    for _ in range(FAILED):
        try:
            draw_transcripts(mechanism, [data], 1, budget)
        except InputRefused as refusal:
            messages.append(str(refusal))
    return messages


def _check_scalars(
    mechanism: BlackBox, inputs: InputShapes, budget: CallBudget
) -> list[SingleTestResult]:
    """Whether numbers of no dimensions come out without noise if arrays have some."""
    with_scalar = replace(inputs, structures=(SCALAR,))
    sizes = []
    try:
        for size in (1.0, 2.0):
            data = scaled_data(mechanism.kind, with_scalar, size)
            block = draw_transcripts(mechanism, [data], CONDITION_CALLS, budget)
            sizes.append(block.rows[:, 0])
    except InputRefused:
        return []
    first, second = sizes
    if first.shape != second.shape or first.shape[1] < 2:
        return []
    noise = np.ptp(first, axis=0)
    if noise[0] == 0 and noise[1:].max() > 0 and first[0, 0] != second[0, 0]:
        says = (
            "an array of no dimensions (a scalar) is released without noise: arrays must "
            "have at least one dimension"
        )
        return [
            SingleTestResult("scalars", "condition", says, inputs="an update of shapes (), (5,)")
        ]
    return []

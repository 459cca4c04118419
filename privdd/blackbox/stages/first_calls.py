"""The first calls: seeds that repeat, and what is declared of the noise."""

from __future__ import annotations

import numpy as np

from privdd.blackbox.check_run import CheckRun
from privdd.blackbox.declarations import check_declared_batches, check_declared_noise
from privdd.blackbox.inputs import scaled_data
from privdd.blackbox.transcripts import draw_transcripts

TRANSCRIPTS = 3
SHOWN = 20  # numbers of each
SAME_SEEDS = "two instances, made alike, add the same noise: whoever knows the code subtracts it"


def examine_first_calls(run: CheckRun) -> None:
    """Whether two instances add the same noise; then what is declared."""
    run.report.first = first_numbers(run)
    if run.mechanism.fresh and run.report.first and _has_same_seeds(run):
        run.add_certain("seeds", SAME_SEEDS)
    run.report.looks += check_declared_batches(run.claim)
    run.report.looks += check_declared_noise(
        run.mechanism, run.claim, run.inputs, run.budget, run.errors.next_confidence
    )


def _has_same_seeds(run: CheckRun) -> bool:
    """Whether noise differs between the calls of an instance, and not between instances."""
    data = scaled_data(run.mechanism.kind, run.inputs, 1.0)
    first = run.mechanism.transcript([data, data])
    second = run.mechanism.transcript([data, data])
    half = len(first.numbers) // 2
    varies = not np.array_equal(first.numbers[:half], first.numbers[half:])
    return varies and np.array_equal(first.numbers, second.numbers)


def first_numbers(run: CheckRun) -> list[float]:
    """At most 20 numbers of each of three transcripts; a second process that returns the same ones
    draws the same noise. Raises InputRefused, OutOfTime."""
    data = scaled_data(run.mechanism.kind, run.inputs, 1.0)
    block = draw_transcripts(run.mechanism, [data], TRANSCRIPTS, run.budget)
    return [float(x) for x in block.rows[:, 0, :SHOWN].ravel()]

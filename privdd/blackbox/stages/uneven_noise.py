"""Bounds under a law of directions only, on one pair of neighbours of many numbers, which tell how
much noise a release got."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from privdd.blackbox.check_run import CheckRun
from privdd.blackbox.inputs import InputShapes, NeighbouringInputs, is_quiet, total_size
from privdd.blackbox.mechanism import InputRefused
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.spherical_noise import (
    LEAST_SYMMETRIC_VALUES,
    fit_noise_frame,
    is_spherical,
    symmetric_epsilon,
)

NUMBERS = 128
ROWS = 20
# releases a side: to see whether the noise varies, and to judge
FEW = 150
MANY = 30_000
# of the calls that are left, for either
FIRST_SHARE = 0.1
SHARE = 0.4
NAME = "neighbours, noise of uneven size"
FAULT = "the release reveals the record if its noise is small; the noise has one size on all sides"


def examine_uneven_noise(run: CheckRun) -> None:
    """The first pair whose data hold nothing but the record, if clients weigh the same."""
    pairs = neighbouring_pairs(run.mechanism.kind, run.claim.relation, _wide_inputs(run))
    for pair in pairs:
        if is_quiet(pair.absent, run.inputs.nothing) and _weighs_equally(run, pair):
            with suppress(InputRefused):  # wide inputs were never promised
                _judge_pair(run, pair)
            return


def _weighs_equally(run: CheckRun, pair: NeighbouringInputs) -> bool:
    return run.mechanism.kind != "aggregate" or len(set(pair.present[1])) == 1


def _wide_inputs(run: CheckRun) -> InputShapes:
    """One long array or wide table if the user chose no sizes; else the longest of those that the
    user chose."""
    inputs = run.inputs
    shapes: tuple[tuple[int, ...], ...] = ((NUMBERS,),)
    table = (ROWS, NUMBERS)
    if run.has_chosen_shapes:
        shapes = max(inputs.structures, key=total_size)
        table = max(inputs.tables, key=lambda size: size[1])
    return replace(
        inputs, structures=(shapes,), tables=(table,), crowds=inputs.crowds[-1:], along=()
    )


def _judge_pair(run: CheckRun, pair: NeighbouringInputs) -> None:
    pilot = run.draw_affordable(pair, NAME, FIRST_SHARE, FEW, FEW)
    if not pilot:
        return
    present, absent = pilot[0]
    frame = fit_noise_frame(present, absent, pair.axis)
    if frame is None:
        return
    noise = frame.split_releases(absent)
    if not noise.is_uneven or not is_spherical(noise):
        return
    blocks = run.draw_affordable(pair, NAME, SHARE, MANY, 2 * LEAST_SYMMETRIC_VALUES, thirds=True)
    if not blocks:
        return
    trained, fresh = blocks
    frame = fit_noise_frame(*trained, pair.axis)
    if frame is not None:
        bound = symmetric_epsilon(frame, trained, fresh, run.next_level())
        run.add_fault(NAME, bound, "noise_law", FAULT, pair.says)

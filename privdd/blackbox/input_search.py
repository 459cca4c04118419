"""Inputs that a mechanism accepts, and the sizes at which it starts to release something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privdd.blackbox.identification_games import scaled_data
from privdd.blackbox.inputs import PLAIN, InputShapes, NeighbouringInputs, neighbouring_pairs
from privdd.blackbox.mechanism import BlackBox, InputRefused
from privdd.blackbox.transcripts import CallBudget, draw_transcripts
from privdd.core.validation import BadConfig


def accepted_inputs(mechanism: BlackBox, tried: InputShapes) -> tuple[InputShapes, list[str]]:
    """Inputs that the mechanism takes, and a note on those that it refuses.

    They are tensors if it takes no arrays, with nearly zeros if it takes no zeros. Raises BadConfig where it takes none.
    """
    said = ""
    for torch in (False, True):
        mechanism.torch = torch
        for nothing in (0.0, 1e-9):
            now = replace(tried, nothing=nothing)
            good, refused, said_now = _filter_inputs(mechanism, now)
            said = said or said_now
            if good is not None:
                note = f"inputs of {refused} of the sizes that are tried were refused, the first with: {said_now}"
                return good, [note] if refused else []
    raise BadConfig(f"the mechanism refuses every input that was tried; the first error: {said}")


def _filter_inputs(mechanism: BlackBox, tried: InputShapes) -> tuple[InputShapes | None, int, str]:
    """What is left of ``tried``, how many sizes are refused, and the first error."""
    said, name = "", "tables" if mechanism.kind == "records" else "structures"
    kept: list[Any] = []
    for part in getattr(tried, name):
        one = _with_parts(tried, name, (part,))
        plain, empty = scaled_data(mechanism.kind, one, 1.0), scaled_data(mechanism.kind, one, 0.0)
        if tried.nothing:
            empty = scaled_data(mechanism.kind, one, tried.nothing)
        try:
            mechanism.transcript([plain])
            mechanism.transcript([empty])
        except InputRefused as no:
            said = said or str(no)
            continue
        kept.append(part)
    refused = len(getattr(tried, name)) - len(kept)
    return _with_parts(tried, name, tuple(kept)) if kept else None, refused, said


def _with_parts(tried: InputShapes, name: str, parts: Any) -> InputShapes:
    return replace(tried, tables=parts) if name == "tables" else replace(tried, structures=parts)


SIZES = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)
SIZE_CALLS = 4  # at each size
STEPS = 2  # between sizes, that are looked for
SIZE_SHARE = 0.03  # of the time and the calls that are left


@dataclass(frozen=True)
class _SizeOutcome:
    """What came out at one size: types, shapes and texts; and whether all calls gave the same numbers."""

    codes: frozenset[str]
    repeats: bool

    def differs_from(self, other: _SizeOutcome) -> bool:
        return self.repeats != other.repeats or not self.codes & other.codes


def pairs_at_revealing_sizes(
    mechanism: BlackBox, relation: str, tried: InputShapes, clock: CallBudget
) -> list[NeighbouringInputs]:
    """Neighbours of the sizes at which the release changes kind, among records of norm 1."""
    if mechanism.kind == "update":
        return []
    found = []
    for n in _size_steps(mechanism, tried, clock):
        more = neighbouring_pairs(mechanism.kind, relation, _inputs_of_size(mechanism.kind, tried, n))
        found += [pair for pair in more if "others random" in pair.says and PLAIN[0] in pair.says]
    return found


def _inputs_of_size(kind: str, tried: InputShapes, n: int) -> InputShapes:
    return replace(tried, tables=((n, tried.tables[0][1]),)) if kind == "records" else replace(tried, crowds=(n,))


def _size_steps(mechanism: BlackBox, tried: InputShapes, clock: CallBudget) -> Iterator[int]:
    """The larger of two sizes next to each other whose releases differ in kind, ``STEPS`` at most."""
    ends, last = clock.seconds_left() * (1 - SIZE_SHARE), mechanism.calls + SIZE_SHARE * (clock.calls - mechanism.calls)
    before: tuple[int, _SizeOutcome] | None = None
    given = 0
    for n in SIZES:
        if given == STEPS or clock.seconds_left() < ends or mechanism.calls > last:
            return
        now = _outcome_at_size(mechanism, tried, n, clock)
        if before and now and before[1].differs_from(now):
            given += 1
            yield _bisect_sizes(mechanism, tried, before, n, clock)
        before = (n, now) if now else None


def _bisect_sizes(
    mechanism: BlackBox, tried: InputShapes, low: tuple[int, _SizeOutcome], high: int, clock: CallBudget
) -> int:
    """The first size above ``low`` that is not of its kind, by halving."""
    least, kind = low
    while high - least > 1:
        middle = (least + high) // 2
        now = _outcome_at_size(mechanism, tried, middle, clock)
        least, high = (least, middle) if now is None or kind.differs_from(now) else (middle, high)
    return high


def _outcome_at_size(mechanism: BlackBox, tried: InputShapes, n: int, clock: CallBudget) -> _SizeOutcome | None:
    """None where the mechanism refuses so many."""
    try:
        block = draw_transcripts(
            mechanism, [scaled_data(mechanism.kind, _inputs_of_size(mechanism.kind, tried, n), 1.0)], SIZE_CALLS, clock
        )
    except InputRefused:
        return None
    return _SizeOutcome(
        frozenset(block.codes), bool((block.rows == block.rows[:1]).all()) and bool(np.size(block.rows))
    )

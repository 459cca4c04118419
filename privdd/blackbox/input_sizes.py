"""Sizes of inputs that a mechanism accepts, and those at which its releases change kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from privdd.blackbox.budgets import CallBudget
from privdd.blackbox.inputs import InputShapes, NeighbouringInputs, scaled_data
from privdd.blackbox.mechanism import BlackBox, InputRefused
from privdd.blackbox.neighbours import PLAIN, neighbouring_pairs
from privdd.blackbox.transcripts import draw_transcripts
from privdd.core.validation import BadConfig

NEARLY_ZERO = 1e-9
SIZES = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)
SIZE_CALLS = 4  # at each size
STEPS = 2  # between sizes, that are looked for
SIZE_SHARE = 0.03  # of the calls that are left


def accepted_inputs(mechanism: BlackBox, tried: InputShapes) -> tuple[InputShapes, list[str]]:
    """The sizes that the mechanism accepts, as tensors if it accepts no arrays, with nearly zeros
    if it accepts no zeros.

    Args:
        mechanism: what is called; its ``torch`` is set.
        tried: sizes of inputs.

    Returns:
        (accepted sizes, a note on those that it refuses).

    Raises:
        BadConfig: it refuses all.
    """
    first_error = ""
    for torch in (False, True):
        mechanism.torch = torch
        for nothing in (0.0, NEARLY_ZERO):
            accepted, refused, error = _filter_inputs(mechanism, replace(tried, nothing=nothing))
            first_error = first_error or error
            if accepted is not None:
                note = (
                    f"inputs of {refused} of the sizes that are tried were refused, the first "
                    f"with: {error}"
                )
                return accepted, [note] if refused else []
    raise BadConfig(
        f"the mechanism refuses every input that was tried; the first error: {first_error}"
    )


def _filter_inputs(mechanism: BlackBox, tried: InputShapes) -> tuple[InputShapes | None, int, str]:
    """(what is left of ``tried``, how many sizes are refused, the first error)."""
    first_error = ""
    if mechanism.kind == "records":
        name = "tables"
    else:
        name = "structures"
    sizes = getattr(tried, name)
    accepted: list[Any] = []
    for size in sizes:
        alone = replace(tried, **{name: (size,)})  # type: ignore[arg-type]
        try:
            for norm in (1.0, tried.nothing):
                mechanism.transcript([scaled_data(mechanism.kind, alone, norm)])
        except InputRefused as refusal:
            first_error = first_error or str(refusal)
            continue
        accepted.append(size)
    refused = len(sizes) - len(accepted)
    if not accepted:
        return None, refused, first_error
    return replace(tried, **{name: tuple(accepted)}), refused, first_error  # type: ignore[arg-type]


def pairs_at_revealing_sizes(
    mechanism: BlackBox, relation: str, tried: InputShapes, budget: CallBudget
) -> list[NeighbouringInputs]:
    """Neighbours of the sizes at which the release changes kind, among records of norm 1.

    Args:
        mechanism: what is called.
        relation: add_remove, replace or zero_out.
        tried: sizes of inputs, whose numbers of records or clients are replaced.
        budget: a share of which is spent.
    """
    if mechanism.kind == "update":
        return []
    pairs: list[NeighbouringInputs] = []
    for n in _size_steps(mechanism, tried, budget):
        sizes = _inputs_of_size(mechanism.kind, tried, n)
        for pair in neighbouring_pairs(mechanism.kind, relation, sizes):
            if "others random" in pair.says and PLAIN[0] in pair.says:
                pairs.append(pair)
    return pairs


def _inputs_of_size(kind: str, tried: InputShapes, n: int) -> InputShapes:
    """n rows, or clients."""
    if kind == "records":
        _, d = tried.tables[0]
        return replace(tried, tables=((n, d),))
    return replace(tried, crowds=(n,))


@dataclass(frozen=True)
class OutcomeKind:
    """codes: types, shapes and texts that came out; repeats: whether all calls gave the same
    numbers."""

    codes: frozenset[str]
    repeats: bool

    def differs_from(self, earlier: OutcomeKind) -> bool:
        """Whether no code is common, or only one of them repeats."""
        return self.repeats != earlier.repeats or not self.codes & earlier.codes


def _size_steps(mechanism: BlackBox, tried: InputShapes, budget: CallBudget) -> Iterator[int]:
    """The larger of two sizes next to each other whose releases differ in kind, ``STEPS`` at
    most."""
    share = budget.split_share(mechanism, SIZE_SHARE)
    steps = 0
    least = 0
    before = None
    for n in SIZES:
        if steps == STEPS or share.is_spent(mechanism):
            return
        kind = _outcome_at_size(mechanism, tried, n, budget)
        if before is not None and kind is not None and before.differs_from(kind):
            steps += 1
            yield _first_other_size(mechanism, tried, budget, before, least, n)
        least = n
        before = kind


def _first_other_size(
    mechanism: BlackBox,
    tried: InputShapes,
    budget: CallBudget,
    before: OutcomeKind,
    low: int,
    high: int,
) -> int:
    """The smallest size above ``low`` whose outcomes differ from ``before``, by halving."""
    while high - low > 1:
        middle = (low + high) // 2
        kind = _outcome_at_size(mechanism, tried, middle, budget)
        if kind is None or before.differs_from(kind):
            high = middle
        else:
            low = middle
    return high


def _outcome_at_size(
    mechanism: BlackBox, tried: InputShapes, n: int, budget: CallBudget
) -> OutcomeKind | None:
    """None if so many records or clients are refused."""
    data = scaled_data(mechanism.kind, _inputs_of_size(mechanism.kind, tried, n), 1.0)
    try:
        block = draw_transcripts(mechanism, [data], SIZE_CALLS, budget)
    except InputRefused:
        return None
    repeats = bool(block.rows.size) and bool((block.rows == block.rows[:1]).all())
    return OutcomeKind(frozenset(block.codes), repeats)

"""Sizes of inputs, neighbours as data, and data of a given size."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privdd.blackbox.mechanism import Data

Shapes = tuple[tuple[int, ...], ...]  # of the arrays of an update
Member = tuple[list[np.ndarray], int]  # arrays of a record or client, its weight

SHAPES: tuple[Shapes, ...] = (
    ((4, 3), (4,), (1,), (2, 2, 2)),
    ((16,),),
    ((2,), (2,), (2,), (2,), (2,), (2,), (2,), (2,)),
    ((2, 2), (5,)),
    ((1,),),
)
CLIENTS = (1, 2, 10)
RECORDS = ((2, 6), (20, 6), (64, 4), (4, 16), (1, 3))
LARGE = 1e3  # norm of a record that any clip shortens
HEAVY = 5000  # the weight of the heaviest client, against 100
TIMES = (2, 3, 4, 8)  # that the other records are repeated
MOST_OTHERS = 200


@dataclass(frozen=True)
class NeighbouringInputs:
    """Two inputs that differ in one record.

    Attributes:
        present: data with the record.
        absent: data without it.
        says: what distinguishes them, in words.
        axis: (m,) direction in which the record moves.
    """

    present: Data
    absent: Data
    says: str
    axis: np.ndarray


@dataclass(frozen=True)
class InputShapes:
    """Sizes of inputs to try.

    Attributes:
        structures: shapes of an update's arrays.
        tables: (n, d) of records.
        crowds: numbers of clients.
        nothing: what a zeroed record holds.
        along: unit vectors to try instead of the usual directions, of records with as many numbers.
        seed: of random directions and rows.
    """

    structures: tuple[Shapes, ...] = SHAPES
    tables: tuple[tuple[int, int], ...] = RECORDS
    crowds: tuple[int, ...] = CLIENTS
    nothing: float = 0.0
    along: tuple[np.ndarray, ...] = ()
    seed: int = 0


def split_vector(flat: np.ndarray, shapes: Shapes) -> list[np.ndarray]:
    """A flat vector as arrays of these shapes (zero-dimensional ones stay arrays)."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(flat, ends[:-1])
    return [np.array(part, dtype=np.float64).reshape(shape) for part, shape in zip(parts, shapes)]


def total_size(shapes: Shapes) -> int:
    """Numbers of all arrays."""
    return sum(math.prod(shape) for shape in shapes)


def scaled_data(kind: str, tried: InputShapes, factor: float) -> Data:
    """Data whose record has norm ``factor``; the others are of norm 1.

    Args:
        kind: of mechanism: update, aggregate or records.
        tried: sizes; of tables the third, if there are so many.
        factor: norm of the first record, client or update.
    """
    rng = np.random.default_rng([tried.seed, 2])
    if kind == "records":
        n, d = tried.tables[min(2, len(tried.tables) - 1)]
        return _unit_rows(rng, n, d, factor)
    shapes = tried.structures[0]
    rows = _unit_rows(rng, tried.crowds[-1], total_size(shapes), factor)
    if kind == "update":
        return split_vector(rows[0], shapes)
    return [split_vector(row, shapes) for row in rows], [100] * len(rows)


def _unit_rows(rng: np.random.Generator, n: int, d: int, factor: float) -> np.ndarray:
    """(n, d) random rows of norm 1, the first of norm ``factor``."""
    rows = rng.standard_normal((n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[0] *= factor
    return rows


def is_quiet(data: Data, nothing: float) -> bool:
    """Whether no number in the data is larger than ``nothing``."""
    if isinstance(data, np.ndarray):
        updates = [data]
    elif isinstance(data, tuple):
        updates = data[0]
    else:
        updates = [data]
    return all(bool(np.all(np.abs(a) <= nothing)) for update in updates for a in update)


def size_of_data(data: Data) -> tuple[Any, ...]:
    """What tells tables of other sizes, and crowds or updates of other numbers, from each other."""
    if isinstance(data, np.ndarray):
        return data.shape
    if isinstance(data, tuple):
        updates, _ = data
        return (len(updates), len(updates[0]))
    return (len(data),)


def with_nonfinite_number(pair: NeighbouringInputs, kind: str, value: float) -> NeighbouringInputs:
    """The same neighbours with one number of the record replaced by NaN or infinity.

    Args:
        pair: finite neighbours, the record first.
        kind: of mechanism: update, aggregate or records.
        value: NaN or infinity.
    """
    present = copy.deepcopy(pair.present)
    if kind == "records":
        array = present
    elif kind == "update":
        array = present[0]
    else:
        updates, _ = present
        array = updates[0][0]
    array.reshape(-1)[0] = value
    says = f"{pair.says}, one number of it {value}"
    return NeighbouringInputs(present, pair.absent, says, pair.axis)


def enlarge_neighbours(pair: NeighbouringInputs, kind: str) -> list[NeighbouringInputs]:
    """The pair with its other records or clients repeated.

    Args:
        pair: the neighbours.
        kind: of mechanism: update, aggregate or records.

    Returns:
        One pair for each number of repeats; none if there are no others.
    """
    if kind == "update":
        return []
    present = _split_members(pair.present, kind)
    absent = _split_members(pair.absent, kind)
    place = _place_of_record(present, absent)
    other_inputs = [*present[:place], *present[place + 1 :]]
    instead = absent[place : place + len(absent) - len(present) + 1]
    enlarged = []
    for times in TIMES:
        if 0 < len(other_inputs) * times <= MOST_OTHERS:
            repeated = other_inputs * times
            enlarged.append(
                NeighbouringInputs(
                    _join_members([present[place], *repeated], kind),
                    _join_members([*instead, *repeated], kind),
                    f"{pair.says}, the others {times} times",
                    pair.axis,
                )
            )
    return enlarged


def _split_members(data: Data, kind: str) -> list[Member]:
    """Each record or client with its weight."""
    if kind == "records":
        return [([row], 1) for row in data]
    return list(zip(*data))


def _place_of_record(present: list[Member], absent: list[Member]) -> int:
    """The first place at which the sides differ."""
    for place, (with_record, without_record) in enumerate(zip(present, absent)):
        is_same = with_record[1] == without_record[1] and all(
            map(np.array_equal, with_record[0], without_record[0])
        )
        if not is_same:
            return place
    return len(absent)


def _join_members(members: list[Member], kind: str) -> Data:
    if kind == "records":
        return np.stack([arrays[0] for arrays, _ in members])
    updates = [[a.copy() for a in arrays] for arrays, _ in members]
    return updates, [weight for _, weight in members]

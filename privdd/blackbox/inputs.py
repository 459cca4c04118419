"""Neighbouring inputs to try: by structure, scale, direction, place, count, weight and duplicates, alone and among many others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from privdd.blackbox.mechanism import Data

SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((4, 3), (4,), (1,), (2, 2, 2)),
    ((16,),),
    ((2,), (2,), (2,), (2,), (2,), (2,), (2,), (2,)),
    ((2, 2), (5,)),
    ((1,),),
)
HUGE, LARGE, SMALL = 1e6, 1e3, 1e-3
BETWEEN = (2.0, 6.0, 40.0)  # norms that a clip at another norm lets through
CLIENTS = (1, 2, 10)
RECORDS = ((2, 6), (20, 6), (64, 4), (4, 16), (1, 3))
EQUAL = "equal weights"
PLAIN = ("spread evenly", "one number")  # directions that more is tried of
OUTWEIGHED = "its opposite, half as much together"  # a sum of all has the record's sign, and the others' without it
EVERYWHERE = 20  # rows
HEAVY = 5000  # the weight of the heaviest client, against 100


@dataclass(frozen=True)
class NeighbouringInputs:
    """Neighbours. says: what distinguishes them, in words; axis: the direction (m,) in which the record moves."""

    present: Data
    absent: Data
    says: str
    axis: np.ndarray


@dataclass(frozen=True)
class InputShapes:
    """What inputs look like. structures: shapes of an update's arrays; tables: (n, d) of records; crowds: clients.

    nothing: what a zeroed record holds; not 0 for mechanisms that refuse zeros. along: directions (unit vectors) that are
    tried instead of the usual ones, where the record has as many numbers.
    """

    structures: tuple[tuple[tuple[int, ...], ...], ...] = SHAPES
    tables: tuple[tuple[int, int], ...] = RECORDS
    crowds: tuple[int, ...] = CLIENTS
    nothing: float = 0.0
    along: tuple[np.ndarray, ...] = ()
    seed: int = 0


def unit_directions(m: int, rng: np.random.Generator, along: tuple[np.ndarray, ...] = ()) -> dict[str, np.ndarray]:
    """Unit vectors (m,) by name; those of ``along`` that fit, if any does."""
    if any(len(u) == m for u in along):
        return {f"the direction that shows most ({at})": u for at, u in enumerate(along) if len(u) == m}
    first, last = np.zeros(m), np.zeros(m)
    first[0], last[-1] = 1.0, 1.0
    found = {
        "spread evenly": np.full(m, 1 / math.sqrt(m)),
        "random signs": rng.choice([-1.0, 1.0], m) / math.sqrt(m),
        "one number": first,
        "the last number": last,
    }
    return found if m > 1 else {"one number": first}


def split_vector(flat: np.ndarray, shapes: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
    """A flat vector as arrays of these shapes (zero-dimensional ones stay arrays)."""
    parts, at = [], 0
    for shape in shapes:
        size = math.prod(shape)
        parts.append(np.array(flat[at : at + size], dtype=np.float64).reshape(shape))
        at += size
    return parts


def total_size(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def neighbouring_pairs(kind: str, relation: str, tried: InputShapes) -> list[NeighbouringInputs]:
    """Everything that is tried of finite inputs, the most telling kinds first."""
    rng = np.random.default_rng([tried.seed, 1])
    make: dict[str, Callable[[str, InputShapes, np.random.Generator], Iterator[NeighbouringInputs]]] = {
        "update": _update_pairs,
        "aggregate": _aggregate_pairs,
        "records": _table_pairs,
    }
    return list(make[kind](relation, tried, rng))


def _replacement_records(
    relation: str, u: np.ndarray, scale: float, tried: InputShapes
) -> Iterator[tuple[np.ndarray, str]]:
    """What the record u * scale may become, other than removed."""
    if relation == "replace":
        yield -u * scale, "its opposite"
    yield (u * tried.nothing), "zeros"


def _update_pairs(relation: str, tried: InputShapes, rng: np.random.Generator) -> Iterator[NeighbouringInputs]:
    for shapes in tried.structures:
        m = total_size(shapes)
        for name, u in unit_directions(m, rng, tried.along).items():
            for scale in (LARGE, HUGE, 1.0, SMALL, *(BETWEEN if name in PLAIN else ())):
                for other, what in _replacement_records(relation, u, scale, tried):
                    says = f"an update of norm {scale:g}, {name}, of {len(shapes)} array(s), against {what}"
                    yield NeighbouringInputs(split_vector(u * scale, shapes), split_vector(other, shapes), says, u)
        if relation == "replace":
            a, b = list(unit_directions(m, rng).values())[:2] if m > 1 else (np.ones(1), np.ones(1))
            for one, two in ((LARGE, SMALL), (LARGE, 1.0), (LARGE, 2 * LARGE)):
                says = f"an update of norm {one:g} against one of norm {two:g}"
                yield NeighbouringInputs(split_vector(a * one, shapes), split_vector(b * two, shapes), says, a)


def _aggregate_pairs(relation: str, tried: InputShapes, rng: np.random.Generator) -> Iterator[NeighbouringInputs]:
    for shapes in tried.structures[:3]:
        m = total_size(shapes)
        ways = unit_directions(m, rng, tried.along)
        for name, u in ways.items():
            for clients in tried.crowds:
                if relation == "add_remove" and clients == 1:
                    continue
                for others, crowd in _other_clients(u, clients - 1, rng):
                    for weights, weighing in _client_weights(clients) if clients > 1 else [([100], "its weight 100")]:
                        place = 0 if name != "random signs" else clients - 1
                        if crowd == OUTWEIGHED and weighing != EQUAL:
                            continue
                        more = (SMALL, *((HUGE, *BETWEEN) if name in PLAIN and weighing == EQUAL else ()))
                        for scale in (LARGE, *(more if crowd == "zeros" else ())):
                            says = f"one of {clients} clients ({weighing}), norm {scale:g}, {name}, others {crowd}"
                            yield from _client_pairs(relation, u, scale, others, weights, place, shapes, tried, says)


def _client_weights(clients: int) -> Iterator[tuple[list[int], str]]:
    """Weights with the record's first."""
    yield [HEAVY] + [100] * (clients - 1), f"weights {HEAVY} : {clients - 1} x 100"
    yield [100] * clients, EQUAL
    yield [1] + [1000] * (clients - 1), f"weights 1 : {clients - 1} x 1000"


def _other_clients(u: np.ndarray, count: int, rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray], str]]:
    """What the others send."""
    yield [0 * u] * count, "zeros"
    if not count:
        return
    yield [-u * LARGE] * count, "its opposite"
    yield [-u * LARGE / (2 * count)] * count, OUTWEIGHED
    yield [u * LARGE] * count, "the same"
    if count > 2:
        yield [u * LARGE] * (count // 2) + [-u * LARGE] * (count - count // 2), "one half against the other"
    yield [u * 10.0**k for k in np.linspace(-3, 3, count)], "of all sizes"
    yield [r / np.linalg.norm(r) for r in rng.standard_normal((count, len(u)))], "random"


def _client_pairs(
    relation: str,
    u: np.ndarray,
    scale: float,
    others: list[np.ndarray],
    weights: list[int],
    place: int,
    shapes: tuple[tuple[int, ...], ...],
    tried: InputShapes,
    says: str,
) -> Iterator[NeighbouringInputs]:
    def with_record(record: np.ndarray) -> Data:
        rows = [*others[:place], record, *others[place:]]
        w = [*weights[1 : place + 1], weights[0], *weights[place + 1 :]]
        return [split_vector(r if r.any() else u * tried.nothing, shapes) for r in rows], w

    if relation == "add_remove":
        rest = [split_vector(r if r.any() else u * tried.nothing, shapes) for r in others], weights[1:]
        yield NeighbouringInputs(with_record(u * scale), rest, f"{says}, against its absence", u)
        return
    for other, what in _replacement_records(relation, u, scale, tried):
        yield NeighbouringInputs(with_record(u * scale), with_record(other), f"{says}, against {what}", u)


def _table_pairs(relation: str, tried: InputShapes, rng: np.random.Generator) -> Iterator[NeighbouringInputs]:
    for n, d in tried.tables:
        if relation == "add_remove" and n == 1:  # without the record nothing is left: few mechanisms say what then
            continue
        for name, u in unit_directions(d, rng, tried.along).items():
            for others, crowd in _other_clients(u, n - 1, rng):
                for place, where in _row_places(n, crowd == "zeros" and name == PLAIN[0]):
                    more = (1.0, SMALL, *((HUGE, *BETWEEN) if name in PLAIN else ()))
                    for scale in (LARGE, *(more if crowd == "zeros" and not place else ())):
                        says = f"the {where} of {n} records, norm {scale:g}, {name}, others {crowd}"
                        yield from _row_pairs(relation, u, scale, others, place, tried, says)


def counted_neighbours(relation: str, tried: InputShapes) -> list[NeighbouringInputs]:
    """Tables in which one row, two rows and so on are like the record and the others zeros: of a sum that is rounded, or held
    against a threshold, before noise, one of these steps is the large one."""
    rng = np.random.default_rng(tried.seed)
    found: list[NeighbouringInputs] = []
    for n, d in tried.tables:
        name, u = next(iter(unit_directions(d, rng).items()))
        for k in range(1, n - 1):
            others = [u * LARGE] * k + [0 * u] * (n - 1 - k)
            says = f"one of {n} records, norm {LARGE:g}, {name}, others {k} alike and zeros"
            found += _row_pairs(relation, u, LARGE, others, 0, tried, says)
    return found


def _row_places(n: int, everywhere: bool) -> list[tuple[int, str]]:
    """The first and the last; everywhere: all of a few rows, as a sampler with a fixed seed leaves some out."""
    ends = [(0, "first"), (n - 1, "last")][: 2 if n > 1 else 1]
    return ends + [(at, f"number {at + 1}") for at in range(1, n - 1)] if everywhere and n <= EVERYWHERE else ends


def _row_pairs(
    relation: str, u: np.ndarray, scale: float, others: list[np.ndarray], place: int, tried: InputShapes, says: str
) -> Iterator[NeighbouringInputs]:
    def table_with_record(rows: list[np.ndarray]) -> np.ndarray:
        filled = [r if r.any() else u * tried.nothing for r in rows]
        return np.array(filled, dtype=np.float64).reshape(len(filled), len(u))

    before, after = others[:place], others[place:]
    present = table_with_record([*before, u * scale, *after])
    if relation == "add_remove":
        yield NeighbouringInputs(present, table_with_record([*before, *after]), f"{says}, against its absence", u)
        return
    for other, what in _replacement_records(relation, u, scale, tried):
        yield NeighbouringInputs(present, table_with_record([*before, other, *after]), f"{says}, against {what}", u)


def with_nonfinite_number(pair: NeighbouringInputs, kind: str, value: float) -> NeighbouringInputs:
    """The same neighbours with one number of the record replaced by ``value``: NaN, or infinity."""
    present: Data
    if kind == "update":
        present = [a.copy() for a in pair.present]
        present[0].reshape(-1)[0] = value
    elif kind == "aggregate":
        updates, weights = pair.present
        first = [a.copy() for a in updates[0]]
        first[0].reshape(-1)[0] = value
        present = ([first, *updates[1:]], weights)
    else:
        present = pair.present.copy()
        present[0, 0] = value
    return NeighbouringInputs(present, pair.absent, f"{pair.says}, one number of it {value}", pair.axis)


TIMES = (2, 3, 4, 8)
MOST = 200  # others


def enlarge_neighbours(pair: NeighbouringInputs, kind: str) -> list[NeighbouringInputs]:
    """The pair with its other records or clients repeated; none where there are no others."""
    if kind == "update":
        return []
    present, absent = (_split_members(side, kind) for side in (pair.present, pair.absent))
    place = next((i for i, (a, b) in enumerate(zip(present, absent)) if not _is_same_member(a, b)), len(absent))
    others = [one for i, one in enumerate(present) if i != place]
    found = []
    for times in TIMES:
        if not others or len(others) * times > MOST:
            continue
        rest = others * times
        instead = [absent[place]] if len(absent) == len(present) else []
        sides = [_join_members(side, kind) for side in ([present[place], *rest], [*instead, *rest])]
        found.append(NeighbouringInputs(sides[0], sides[1], f"{pair.says}, the others {times} times", pair.axis))
    return found


def _split_members(data: Data, kind: str) -> list[tuple[list[np.ndarray], int]]:
    """Each record or client, with its weight."""
    if kind == "records":
        return [([row], 1) for row in data]
    return list(zip(data[0], data[1]))


def _join_members(members: list[tuple[list[np.ndarray], int]], kind: str) -> Data:
    if kind == "records":
        return np.stack([arrays[0] for arrays, _ in members])
    return [[a.copy() for a in arrays] for arrays, _ in members], [weight for _, weight in members]


def _is_same_member(one: tuple[list[np.ndarray], int], other: tuple[list[np.ndarray], int]) -> bool:
    return one[1] == other[1] and all(np.array_equal(a, b) for a, b in zip(one[0], other[0]))

"""Neighbours to try: by structure, scale, direction, place, count, weight and duplicates, alone and
among many others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from privdd.blackbox.inputs import (
    HEAVY,
    LARGE,
    InputShapes,
    NeighbouringInputs,
    Shapes,
    split_vector,
    total_size,
)
from privdd.blackbox.mechanism import Data

# norms of a record
HUGE = 1e6
SMALL = 1e-3
BETWEEN = (2.0, 6.0, 40.0)  # that a clip at another norm lets through
EQUAL = "equal weights"
PLAIN = ("spread evenly", "one number")  # directions that more is tried of
# a sum of all has the record's sign, and the others' without it
OUTWEIGHED = "its opposite, half as much together"
EVERYWHERE = 20  # rows, up to which the record is tried in all places
STRUCTURES = 3  # of updates, that crowds of clients are tried with

Table = tuple[np.ndarray, list[np.ndarray], str]  # the record, the others, words
Crowd = tuple[list[np.ndarray], str]  # the others, words


def neighbouring_pairs(kind: str, relation: str, tried: InputShapes) -> list[NeighbouringInputs]:
    """All neighbours of finite numbers that are tried, the most telling kinds first.

    Args:
        kind: of mechanism: update, aggregate or records.
        relation: add_remove, replace or zero_out.
        tried: sizes of inputs.
    """
    rng = np.random.default_rng([tried.seed, 1])
    if kind == "update":
        return list(_update_pairs(relation, tried, rng))
    if kind == "aggregate":
        return list(_aggregate_pairs(relation, tried, rng))
    pairs = list(_table_pairs(relation, tried, rng))
    if not tried.along:
        pairs += shared_row_pairs(relation, tried)
    return pairs


def unit_directions(
    m: int, rng: np.random.Generator, along: tuple[np.ndarray, ...] = ()
) -> dict[str, np.ndarray]:
    """Unit vectors (m,) by name; those of ``along`` that fit, if any does."""
    fitting = {
        f"the direction that shows most ({index})": u
        for index, u in enumerate(along)
        if len(u) == m
    }
    if fitting:
        return fitting
    directions = {
        "spread evenly": np.full(m, 1 / math.sqrt(m)),
        "random signs": rng.choice([-1.0, 1.0], m) / math.sqrt(m),
        "one number": np.eye(1, m)[0],
        "the last number": np.eye(1, m, m - 1)[0],
    }
    if m > 1:
        return directions
    return {"one number": directions["one number"]}


def _pairs_around(
    relation: str,
    u: np.ndarray,
    scale: float,
    build: Callable[[np.ndarray | None], Data],
    tried: InputShapes,
    says: str,
) -> Iterator[NeighbouringInputs]:
    """Neighbours of a record ``scale`` u; build: the record, or None for its absence -> data."""
    record = u * scale
    if relation == "add_remove":
        yield NeighbouringInputs(build(record), build(None), f"{says}, against its absence", u)
        return
    if relation == "replace":
        opposite = build(-u * scale)
        yield NeighbouringInputs(build(record), opposite, f"{says}, against its opposite", u)
    zeros = build(u * tried.nothing)
    yield NeighbouringInputs(build(record), zeros, f"{says}, against zeros", u)


def _update_pairs(
    relation: str, tried: InputShapes, rng: np.random.Generator
) -> Iterator[NeighbouringInputs]:
    # without an update nothing would be left
    if relation == "add_remove":
        relation_of_update = "zero_out"
    else:
        relation_of_update = relation
    for shapes in tried.structures:
        m = total_size(shapes)
        build = partial(split_vector, shapes=shapes)
        for name, u in unit_directions(m, rng, tried.along).items():
            between = BETWEEN if name in PLAIN else ()
            for scale in (LARGE, HUGE, 1.0, SMALL, *between):
                says = f"an update of norm {scale:g}, {name}, of {len(shapes)} array(s)"
                yield from _pairs_around(relation_of_update, u, scale, build, tried, says)
        if relation == "replace":
            yield from _update_pairs_of_two_norms(m, shapes, rng)


def _update_pairs_of_two_norms(
    m: int, shapes: Shapes, rng: np.random.Generator
) -> Iterator[NeighbouringInputs]:
    first = second = np.ones(1)
    if m > 1:
        first, second = list(unit_directions(m, rng).values())[:2]
    for norm, other_norm in ((LARGE, SMALL), (LARGE, 1.0), (LARGE, 2 * LARGE)):
        yield NeighbouringInputs(
            split_vector(first * norm, shapes),
            split_vector(second * other_norm, shapes),
            f"an update of norm {norm:g} against one of norm {other_norm:g}",
            first,
        )


def _aggregate_pairs(
    relation: str, tried: InputShapes, rng: np.random.Generator
) -> Iterator[NeighbouringInputs]:
    for shapes in tried.structures[:STRUCTURES]:
        m = total_size(shapes)
        for name, u in unit_directions(m, rng, tried.along).items():
            for clients in tried.crowds:
                if relation == "add_remove" and clients == 1:
                    continue
                for other_members, crowd in _other_members(u, clients - 1, rng):
                    yield from _client_pairs(
                        relation, tried, (name, u), (other_members, crowd), clients, shapes
                    )


def _client_pairs(
    relation: str,
    tried: InputShapes,
    direction: tuple[str, np.ndarray],
    crowd: Crowd,
    clients: int,
    shapes: Shapes,
) -> Iterator[NeighbouringInputs]:
    """One client among others, with all weights and norms that are tried."""
    name, u = direction
    other_members, words = crowd
    place = clients - 1 if name == "random signs" else 0
    for weights, weighing in _client_weights(clients):
        if words == OUTWEIGHED and weighing != EQUAL:
            continue
        scales = [LARGE]
        if words == "zeros":
            scales.append(SMALL)
            if name in PLAIN and weighing == EQUAL:
                scales += [HUGE, *BETWEEN]
        for scale in scales:
            says = f"one of {clients} clients ({weighing}), norm {scale:g}, {name}, others {words}"
            build = partial(
                _client_data,
                others=other_members,
                weights=weights,
                place=place,
                shapes=shapes,
                zeros=u * tried.nothing,
            )
            yield from _pairs_around(relation, u, scale, build, tried, says)


def _client_weights(clients: int) -> list[tuple[list[int], str]]:
    """Weights with the record's first."""
    if clients == 1:
        return [([100], "its weight 100")]
    other_clients = clients - 1
    return [
        ([HEAVY] + [100] * other_clients, f"weights {HEAVY} : {other_clients} x 100"),
        ([100] * clients, EQUAL),
        ([1] + [1000] * other_clients, f"weights 1 : {other_clients} x 1000"),
    ]


def _other_members(u: np.ndarray, count: int, rng: np.random.Generator) -> Iterator[Crowd]:
    """What the other clients send, or the other rows hold."""
    yield [0 * u] * count, "zeros"
    if not count:
        return
    yield [-u * LARGE] * count, "its opposite"
    yield [-u * LARGE / (2 * count)] * count, OUTWEIGHED
    yield [u * LARGE] * count, "the same"
    if count > 2:
        half = count // 2
        halves = [u * LARGE] * half + [-u * LARGE] * (count - half)
        yield halves, "one half against the other"
    yield [u * 10.0**k for k in np.linspace(-3, 3, count)], "of all sizes"
    rows = rng.standard_normal((count, len(u)))
    yield [row / np.linalg.norm(row) for row in rows], "random"


def _client_data(
    record: np.ndarray | None,
    others: list[np.ndarray],
    weights: list[int],
    place: int,
    shapes: Shapes,
    zeros: np.ndarray,
) -> Data:
    rows = [*others]
    weights_of_rows = weights[1:]
    if record is not None:
        rows.insert(place, record)
        weights_of_rows.insert(place, weights[0])
    updates = [split_vector(row if row.any() else zeros, shapes) for row in rows]
    return updates, weights_of_rows


def _table_pairs(
    relation: str, tried: InputShapes, rng: np.random.Generator
) -> Iterator[NeighbouringInputs]:
    for n, d in tried.tables:
        # without the record nothing is left: few mechanisms say what then
        if relation == "add_remove" and n == 1:
            continue
        for name, u in unit_directions(d, rng, tried.along).items():
            for other_members, words in _other_members(u, n - 1, rng):
                yield from _row_pairs(relation, tried, (name, u), (other_members, words), n)


def _row_pairs(
    relation: str,
    tried: InputShapes,
    direction: tuple[str, np.ndarray],
    crowd: Crowd,
    n: int,
) -> Iterator[NeighbouringInputs]:
    """One row among others, in all places and with all norms that are tried."""
    name, u = direction
    other_members, words = crowd
    everywhere = words == "zeros" and name == PLAIN[0]
    for place, place_name in _row_places(n, everywhere):
        scales = [LARGE]
        if words == "zeros" and not place:
            scales += [1.0, SMALL]
            if name in PLAIN:
                scales += [HUGE, *BETWEEN]
        for scale in scales:
            says = f"the {place_name} of {n} records, norm {scale:g}, {name}, others {words}"
            build = partial(_table_data, others=other_members, place=place, zeros=u * tried.nothing)
            yield from _pairs_around(relation, u, scale, build, tried, says)


def _row_places(n: int, everywhere: bool) -> list[tuple[int, str]]:
    """The first and the last; everywhere: all of a few rows, as a sampler with a fixed seed leaves
    some out."""
    places = [(0, "first")]
    if n > 1:
        places.append((n - 1, "last"))
    if everywhere and n <= EVERYWHERE:
        places += [(index, f"number {index + 1}") for index in range(1, n - 1)]
    return places


def _table_data(
    record: np.ndarray | None, others: list[np.ndarray], place: int, zeros: np.ndarray
) -> np.ndarray:
    rows = [*others]
    if record is not None:
        rows.insert(place, record)
    filled = [row if row.any() else zeros for row in rows]
    return np.array(filled, dtype=np.float64).reshape(len(rows), len(zeros))


def shared_row_pairs(relation: str, tried: InputShapes) -> Iterator[NeighbouringInputs]:
    """Tables in which rows are equal, share a group, or lie at the ends of the unit interval: if
    the size of the noise follows a count or a gap between values, the record changes it here.

    Args:
        relation: add_remove, replace or zero_out.
        tried: sizes of inputs.
    """
    rng = np.random.default_rng([tried.seed, 4])
    for n, d in tried.tables:
        if n < 2:
            continue
        tables = [*_copied_rows(n, d, rng), *_grouped_rows(n, d), *_bounded_rows(n, d)]
        for record, other_rows, words in tables:
            norm = float(np.linalg.norm(record))
            if not norm and relation != "add_remove":
                continue  # zeros against zeros
            if norm > 0:
                u = record / norm
            else:
                u = np.full(d, 1 / math.sqrt(d))
            zeros = np.full(d, tried.nothing / math.sqrt(d))
            build = partial(_table_data, others=other_rows, place=0, zeros=zeros)
            says = f"the first of {n} records, {words}"
            yield from _pairs_around(relation, u, norm, build, tried, says)


def _copied_rows(n: int, d: int, rng: np.random.Generator) -> Iterator[Table]:
    record = np.full(d, 1 / math.sqrt(d))
    rows = [row / np.linalg.norm(row) for row in rng.standard_normal((n, d))]
    yield record, [record] * (n - 1), "of norm 1, the others equal to it"
    yield record, [record, *rows][: n - 1], "of norm 1, one of the others equal to it"
    doubled = []
    for row in rows:
        doubled += [row, row]
    yield record, [record, *doubled][: n - 1], "of norm 1, every row twice"


def _grouped_rows(n: int, d: int) -> Iterator[Table]:
    """A whole number in one column is the group; the record is alone in it, or one of two."""
    columns = [(d - 1, "last"), (0, "first")]
    for column, name in columns[: min(d, 2)]:
        record = np.full(d, 1 / (2 * math.sqrt(d)))
        elsewhere = record.copy()
        record[column] = 1.0
        elsewhere[column] = 0.0
        group = f"its group by the {name} column"
        yield record, [elsewhere] * (n - 1), f"alone in {group}"
        yield record, [record, *[elsewhere] * n][: n - 1], f"one of two in {group}"


def _bounded_rows(n: int, d: int) -> Iterator[Table]:
    """Values at the ends of the unit interval, in its middle, and between."""
    low = np.zeros(d)
    high = np.ones(d)
    records = {"the lower end": low, "the middle": high / 2, "the upper end": high}
    crowds = {
        "one half of the others at each end": [low, high] * n,
        "the others evenly between": [np.full(d, share) for share in np.linspace(0, 1, n - 1)],
        "the others at the upper end": [high] * n,
    }
    for crowd, other_rows in crowds.items():
        for name, record in records.items():
            yield record, other_rows[: n - 1], f"at {name} of the unit interval, {crowd}"


def counted_neighbours(relation: str, tried: InputShapes) -> list[NeighbouringInputs]:
    """Tables of k rows like the record and zeros, for every k: of a sum that is rounded or
    thresholded before noise one step is large.

    Args:
        relation: add_remove, replace or zero_out.
        tried: sizes of inputs.
    """
    rng = np.random.default_rng(tried.seed)
    pairs: list[NeighbouringInputs] = []
    for n, d in tried.tables:
        name, u = next(iter(unit_directions(d, rng).items()))
        for k in range(1, n - 1):
            other_rows = [u * LARGE] * k + [0 * u] * (n - 1 - k)
            says = f"one of {n} records, norm {LARGE:g}, {name}, others {k} alike and zeros"
            build = partial(_table_data, others=other_rows, place=0, zeros=u * tried.nothing)
            pairs += _pairs_around(relation, u, LARGE, build, tried, says)
    return pairs

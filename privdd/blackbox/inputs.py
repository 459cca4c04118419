"""Neighbouring inputs to try: by structure, scale, direction, place, count, weight and duplicates,
alone and among many others."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from privdd.blackbox.distinguishers import (
    MIN_VALUES,
    ReleaseMarks,
    comes_back,
    discrete_outcomes,
    learn_statistics,
)
from privdd.blackbox.mechanism import (
    BlackBox,
    CallBudget,
    Data,
    InputRefused,
    Transcripts,
    draw_transcripts,
)
from privdd.core.validation import BadConfig

SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((4, 3), (4,), (1,), (2, 2, 2)),
    ((16,),),
    ((2,), (2,), (2,), (2,), (2,), (2,), (2,), (2,)),
    ((2, 2), (5,)),
    ((1,),),
)
HUGE = 1e6
LARGE = 1e3
SMALL = 1e-3
BETWEEN = (2.0, 6.0, 40.0)  # norms that a clip at another norm lets through
CLIENTS = (1, 2, 10)
RECORDS = ((2, 6), (20, 6), (64, 4), (4, 16), (1, 3))
EQUAL = "equal weights"
PLAIN = ("spread evenly", "one number")  # directions that more is tried of
# a sum of all has the record's sign, and the others' without it
OUTWEIGHED = "its opposite, half as much together"
EVERYWHERE = 20  # rows
HEAVY = 5000  # the weight of the heaviest client, against 100


@dataclass(frozen=True)
class NeighbouringInputs:
    """Neighbours. says: what distinguishes them, in words; axis: the direction (m,) in which the
    record moves."""

    present: Data
    absent: Data
    says: str
    axis: np.ndarray


@dataclass(frozen=True)
class InputShapes:
    """structures: shapes of an update's arrays; tables: (n, d) of records; crowds: clients.
    nothing: what a zeroed record holds; along: unit vectors tried instead of the usual directions,
        where the record has as many numbers."""

    structures: tuple[tuple[tuple[int, ...], ...], ...] = SHAPES
    tables: tuple[tuple[int, int], ...] = RECORDS
    crowds: tuple[int, ...] = CLIENTS
    nothing: float = 0.0
    along: tuple[np.ndarray, ...] = ()
    seed: int = 0


def unit_directions(
    m: int, rng: np.random.Generator, along: tuple[np.ndarray, ...] = ()
) -> dict[str, np.ndarray]:
    """Unit vectors (m,) by name; those of ``along`` that fit, if any does."""
    if any(len(u) == m for u in along):
        return {
            f"the direction that shows most ({at})": u for at, u in enumerate(along) if len(u) == m
        }
    found = {
        "spread evenly": np.full(m, 1 / math.sqrt(m)),
        "random signs": rng.choice([-1.0, 1.0], m) / math.sqrt(m),
        "one number": np.eye(1, m)[0],
        "the last number": np.eye(1, m, m - 1)[0],
    }
    return found if m > 1 else {"one number": found["one number"]}


def split_vector(flat: np.ndarray, shapes: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
    """A flat vector as arrays of these shapes (zero-dimensional ones stay arrays)."""
    parts = np.split(flat, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
    return [np.array(part, dtype=np.float64).reshape(shape) for part, shape in zip(parts, shapes)]


def total_size(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def neighbouring_pairs(kind: str, relation: str, tried: InputShapes) -> list[NeighbouringInputs]:
    """Everything that is tried of finite inputs, the most telling kinds first."""
    make = {"update": _update_pairs, "aggregate": _aggregate_pairs, "records": _table_pairs}[kind]
    pairs = list(make(relation, tried, np.random.default_rng([tried.seed, 1])))
    if kind == "records" and not tried.along:
        pairs += shared_row_pairs(relation, tried)
    return pairs


def _pairs_around(
    relation: str,
    u: np.ndarray,
    scale: float,
    build: Callable[[np.ndarray | None], Data],
    tried: InputShapes,
    says: str,
) -> Iterator[NeighbouringInputs]:
    """build: the record, or None for its absence -> data."""
    if relation == "add_remove":
        yield NeighbouringInputs(build(u * scale), build(None), f"{says}, against its absence", u)
        return
    if relation == "replace":
        yield NeighbouringInputs(
            build(u * scale), build(-u * scale), f"{says}, against its opposite", u
        )
    yield NeighbouringInputs(
        build(u * scale), build(u * tried.nothing), f"{says}, against zeros", u
    )


def _update_pairs(
    relation: str, tried: InputShapes, rng: np.random.Generator
) -> Iterator[NeighbouringInputs]:
    for shapes in tried.structures:
        m = total_size(shapes)
        for name, u in unit_directions(m, rng, tried.along).items():
            for scale in (LARGE, HUGE, 1.0, SMALL, *(BETWEEN if name in PLAIN else ())):
                says = f"an update of norm {scale:g}, {name}, of {len(shapes)} array(s)"
                instead = (
                    "zero_out" if relation == "add_remove" else relation
                )  # of an update nothing would be left
                yield from _pairs_around(
                    instead, u, scale, partial(split_vector, shapes=shapes), tried, says
                )
        if relation == "replace":
            a, b = list(unit_directions(m, rng).values())[:2] if m > 1 else (np.ones(1), np.ones(1))
            for one, two in ((LARGE, SMALL), (LARGE, 1.0), (LARGE, 2 * LARGE)):
                says = f"an update of norm {one:g} against one of norm {two:g}"
                yield NeighbouringInputs(
                    split_vector(a * one, shapes), split_vector(b * two, shapes), says, a
                )


def _aggregate_pairs(
    relation: str, tried: InputShapes, rng: np.random.Generator
) -> Iterator[NeighbouringInputs]:
    for shapes in tried.structures[:3]:
        m = total_size(shapes)
        ways = unit_directions(m, rng, tried.along)
        for name, u in ways.items():
            for clients in tried.crowds:
                if relation == "add_remove" and clients == 1:
                    continue
                for others, crowd in _other_clients(u, clients - 1, rng):
                    for weights, weighing in (
                        _client_weights(clients) if clients > 1 else [([100], "its weight 100")]
                    ):
                        place = 0 if name != "random signs" else clients - 1
                        if crowd == OUTWEIGHED and weighing != EQUAL:
                            continue
                        more = (
                            SMALL,
                            *((HUGE, *BETWEEN) if name in PLAIN and weighing == EQUAL else ()),
                        )
                        for scale in (LARGE, *(more if crowd == "zeros" else ())):
                            says = (
                                f"one of {clients} clients ({weighing}), norm {scale:g}, "
                                f"{name}, others {crowd}"
                            )
                            given: dict[str, Any] = {
                                "others": others,
                                "weights": weights,
                                "place": place,
                                "shapes": shapes,
                            }
                            build = partial(_client_data, **given, zeros=u * tried.nothing)
                            yield from _pairs_around(relation, u, scale, build, tried, says)


def _client_weights(clients: int) -> Iterator[tuple[list[int], str]]:
    """Weights with the record's first."""
    yield [HEAVY] + [100] * (clients - 1), f"weights {HEAVY} : {clients - 1} x 100"
    yield [100] * clients, EQUAL
    yield [1] + [1000] * (clients - 1), f"weights 1 : {clients - 1} x 1000"


def _other_clients(
    u: np.ndarray, count: int, rng: np.random.Generator
) -> Iterator[tuple[list[np.ndarray], str]]:
    """What the others send."""
    yield [0 * u] * count, "zeros"
    if not count:
        return
    yield [-u * LARGE] * count, "its opposite"
    yield [-u * LARGE / (2 * count)] * count, OUTWEIGHED
    yield [u * LARGE] * count, "the same"
    if count > 2:
        yield (
            [u * LARGE] * (count // 2) + [-u * LARGE] * (count - count // 2),
            "one half against the other",
        )
    yield [u * 10.0**k for k in np.linspace(-3, 3, count)], "of all sizes"
    yield [r / np.linalg.norm(r) for r in rng.standard_normal((count, len(u)))], "random"


def _client_data(
    record: np.ndarray | None,
    others: list[np.ndarray],
    weights: list[int],
    place: int,
    shapes: tuple[tuple[int, ...], ...],
    zeros: np.ndarray,
) -> Data:
    rows = [*others]
    w = weights[1:]
    if record is not None:
        rows.insert(place, record)
        w.insert(place, weights[0])
    return [split_vector(r if r.any() else zeros, shapes) for r in rows], w


def _table_pairs(
    relation: str, tried: InputShapes, rng: np.random.Generator
) -> Iterator[NeighbouringInputs]:
    for n, d in tried.tables:
        if (
            relation == "add_remove" and n == 1
        ):  # without the record nothing is left: few mechanisms say what then
            continue
        for name, u in unit_directions(d, rng, tried.along).items():
            for others, crowd in _other_clients(u, n - 1, rng):
                for place, where in _row_places(n, crowd == "zeros" and name == PLAIN[0]):
                    more = (1.0, SMALL, *((HUGE, *BETWEEN) if name in PLAIN else ()))
                    for scale in (LARGE, *(more if crowd == "zeros" and not place else ())):
                        says = f"the {where} of {n} records, norm {scale:g}, {name}, others {crowd}"
                        build = partial(
                            _table_data, others=others, place=place, zeros=u * tried.nothing
                        )
                        yield from _pairs_around(relation, u, scale, build, tried, says)


def shared_row_pairs(relation: str, tried: InputShapes) -> Iterator[NeighbouringInputs]:
    """Tables in which rows are equal, share a group, or lie at the ends of the unit interval: where
    the size of the noise follows a count or a gap between values, the record changes it here."""
    rng = np.random.default_rng([tried.seed, 4])
    for n, d in tried.tables:
        if n < 2:
            continue
        for record, others, says in [
            *_copied_rows(n, d, rng),
            *_grouped_rows(n, d),
            *_bounded_rows(n, d),
        ]:
            size = float(np.linalg.norm(record))
            if not size and relation != "add_remove":
                continue  # zeros against zeros
            u = record / size if size > 0 else np.full(d, 1 / math.sqrt(d))
            build = partial(
                _table_data, others=others, place=0, zeros=np.full(d, tried.nothing / math.sqrt(d))
            )
            yield from _pairs_around(
                relation, u, size, build, tried, f"the first of {n} records, {says}"
            )


Table = tuple[np.ndarray, list[np.ndarray], str]  # the record, the others, words


def _copied_rows(n: int, d: int, rng: np.random.Generator) -> Iterator[Table]:
    record = np.full(d, 1 / math.sqrt(d))
    rest = [row / np.linalg.norm(row) for row in rng.standard_normal((n, d))]
    yield record, [record] * (n - 1), "of norm 1, the others equal to it"
    yield record, [record, *rest][: n - 1], "of norm 1, one of the others equal to it"
    doubled = [row for row in rest for _ in range(2)]
    yield record, [record, *doubled][: n - 1], "of norm 1, every row twice"


def _grouped_rows(n: int, d: int) -> Iterator[Table]:
    """A whole number in one column is the group; the record is alone in it, or one of two."""
    for column, name in ((d - 1, "last"), (0, "first"))[: min(d, 2)]:
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
    at = {"the lower end": low, "the middle": high / 2, "the upper end": high}
    crowds = {
        "one half of the others at each end": [low, high] * n,
        "the others evenly between": [np.full(d, share) for share in np.linspace(0, 1, n - 1)],
    }
    for crowd, others in crowds.items():
        for name, record in at.items():
            yield record, others[: n - 1], f"at {name} of the unit interval, {crowd}"
    for name, record in at.items():
        yield (
            record,
            [high] * (n - 1),
            f"at {name} of the unit interval, the others at the upper end",
        )


def counted_neighbours(relation: str, tried: InputShapes) -> list[NeighbouringInputs]:
    """Tables of k rows like the record and zeros, for every k: of a sum that is rounded or
    thresholded before noise one step is large."""
    rng = np.random.default_rng(tried.seed)
    found: list[NeighbouringInputs] = []
    for n, d in tried.tables:
        name, u = next(iter(unit_directions(d, rng).items()))
        for k in range(1, n - 1):
            others = [u * LARGE] * k + [0 * u] * (n - 1 - k)
            says = f"one of {n} records, norm {LARGE:g}, {name}, others {k} alike and zeros"
            build = partial(_table_data, others=others, place=0, zeros=u * tried.nothing)
            found += _pairs_around(relation, u, LARGE, build, tried, says)
    return found


def _row_places(n: int, everywhere: bool) -> list[tuple[int, str]]:
    """The first and the last; everywhere: all of a few rows, as a sampler with a fixed seed leaves
    some out."""
    ends = [(0, "first"), (n - 1, "last")][: 2 if n > 1 else 1]
    return (
        ends + [(at, f"number {at + 1}") for at in range(1, n - 1)]
        if everywhere and n <= EVERYWHERE
        else ends
    )


def _table_data(
    record: np.ndarray | None, others: list[np.ndarray], place: int, zeros: np.ndarray
) -> np.ndarray:
    rows = [*others] if record is None else [*others[:place], record, *others[place:]]
    return np.array([r if r.any() else zeros for r in rows], dtype=np.float64).reshape(
        len(rows), len(zeros)
    )


def with_nonfinite_number(pair: NeighbouringInputs, kind: str, value: float) -> NeighbouringInputs:
    """The same neighbours with one number of the record replaced by ``value``: NaN, or infinity."""
    present = copy.deepcopy(pair.present)
    first = present if kind == "records" else present[0] if kind == "update" else present[0][0][0]
    first.reshape(-1)[0] = value
    return NeighbouringInputs(
        present, pair.absent, f"{pair.says}, one number of it {value}", pair.axis
    )


TIMES = (2, 3, 4, 8)
MOST = 200  # others


def enlarge_neighbours(pair: NeighbouringInputs, kind: str) -> list[NeighbouringInputs]:
    """The pair with its other records or clients repeated; none where there are no others."""
    if kind == "update":
        return []
    # each record or client with its weight
    split = (
        (lambda data: [([row], 1) for row in data])
        if kind == "records"
        else (lambda data: list(zip(*data)))
    )
    present = split(pair.present)
    absent = split(pair.absent)
    same = [
        one[1] == b[1] and all(map(np.array_equal, one[0], b[0])) for one, b in zip(present, absent)
    ]
    place = same.index(False) if False in same else len(absent)
    others = [*present[:place], *present[place + 1 :]]
    instead = absent[place : place + len(absent) - len(present) + 1]
    found = []
    for times in TIMES:
        if 0 < len(others) * times <= MOST:
            rest = others * times
            sides = [
                _join_members(side, kind) for side in ([present[place], *rest], [*instead, *rest])
            ]
            found.append(
                NeighbouringInputs(
                    sides[0], sides[1], f"{pair.says}, the others {times} times", pair.axis
                )
            )
    return found


def _join_members(members: list[tuple[list[np.ndarray], int]], kind: str) -> Data:
    if kind == "records":
        return np.stack([arrays[0] for arrays, _ in members])
    return [[a.copy() for a in arrays] for arrays, _ in members], [weight for _, weight in members]


def scaled_data(kind: str, tried: InputShapes, factor: float) -> Data:
    """Data whose record has norm ``factor``; the others are of norm 1."""
    rng = np.random.default_rng([tried.seed, 2])
    if kind == "records":
        n, d = tried.tables[min(2, len(tried.tables) - 1)]
        rows = rng.standard_normal((n, d))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        rows[0] *= factor
        return rows
    shapes = tried.structures[0]
    m = total_size(shapes)
    made = rng.standard_normal((tried.crowds[-1], m))
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    made[0] *= factor
    if kind == "update":
        return split_vector(made[0], shapes)
    return [split_vector(row, shapes) for row in made], [100] * len(made)


def is_quiet(data: Data, nothing: float) -> bool:
    """Whether nothing but (nearly) zeros is in the data."""
    arrays = (
        [data] if isinstance(data, np.ndarray) else data[0] if isinstance(data, tuple) else [data]
    )
    return all(bool(np.all(np.abs(a) <= nothing)) for part in arrays for a in part)


def accepted_inputs(mechanism: BlackBox, tried: InputShapes) -> tuple[InputShapes, list[str]]:
    """The sizes that the mechanism takes, as tensors if it takes no arrays, with nearly zeros if it
    takes no zeros; and a note on those that it refuses. Raises BadConfig where it takes none."""
    said = ""
    for torch in (False, True):
        mechanism.torch = torch
        for nothing in (0.0, 1e-9):
            now = replace(tried, nothing=nothing)
            good, refused, said_now = _filter_inputs(mechanism, now)
            said = said or said_now
            if good is not None:
                note = (
                    f"inputs of {refused} of the sizes that are tried were refused, the first "
                    f"with: {said_now}"
                )
                return good, [note] if refused else []
    raise BadConfig(f"the mechanism refuses every input that was tried; the first error: {said}")


def _filter_inputs(mechanism: BlackBox, tried: InputShapes) -> tuple[InputShapes | None, int, str]:
    """What is left of ``tried``, how many sizes are refused, and the first error."""
    said = ""
    name = "tables" if mechanism.kind == "records" else "structures"
    kept: list[Any] = []
    for part in getattr(tried, name):
        one = replace(tried, **{name: (part,)})  # type: ignore[arg-type]
        try:
            for size in (1.0, tried.nothing):
                mechanism.transcript([scaled_data(mechanism.kind, one, size)])
        except InputRefused as no:
            said = said or str(no)
            continue
        kept.append(part)
    refused = len(getattr(tried, name)) - len(kept)
    return replace(tried, **{name: tuple(kept)}) if kept else None, refused, said  # type: ignore[arg-type]


SIZES = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)
SIZE_CALLS = 4  # at each size
STEPS = 2  # between sizes, that are looked for
SIZE_SHARE = 0.03  # of the calls that are left


def pairs_at_revealing_sizes(
    mechanism: BlackBox, relation: str, tried: InputShapes, clock: CallBudget
) -> list[NeighbouringInputs]:
    """Neighbours of the sizes at which the release changes kind, among records of norm 1."""
    if mechanism.kind == "update":
        return []
    found = []
    for n in _size_steps(mechanism, tried, clock):
        more = neighbouring_pairs(
            mechanism.kind, relation, _inputs_of_size(mechanism.kind, tried, n)
        )
        found += [pair for pair in more if "others random" in pair.says and PLAIN[0] in pair.says]
    return found


def _inputs_of_size(kind: str, tried: InputShapes, n: int) -> InputShapes:
    return (
        replace(tried, tables=((n, tried.tables[0][1]),))
        if kind == "records"
        else replace(tried, crowds=(n,))
    )


def _size_steps(mechanism: BlackBox, tried: InputShapes, clock: CallBudget) -> Iterator[int]:
    """The larger of two sizes next to each other whose releases differ in kind, ``STEPS`` at
    most."""
    budget = clock.split_share(mechanism, SIZE_SHARE)
    given = 0
    least = 0
    before = None
    for n in SIZES:
        if given == STEPS or budget.is_spent(mechanism):
            return
        now = _outcome_at_size(mechanism, tried, n, clock)
        if before and now and _differs_in_kind(before, now):
            given = given + 1
            high = n
            while high - least > 1:  # by halving
                middle = (least + high) // 2
                there = _outcome_at_size(mechanism, tried, middle, clock)
                least, high = (
                    (least, middle)
                    if not there or _differs_in_kind(before, there)
                    else (middle, high)
                )
            yield high
        least = n
        before = now


def _differs_in_kind(one: tuple[set[str], bool], other: tuple[set[str], bool]) -> bool:
    return one[1] != other[1] or not one[0] & other[0]


def _outcome_at_size(
    mechanism: BlackBox, tried: InputShapes, n: int, clock: CallBudget
) -> tuple[set[str], bool] | None:
    """(types, shapes and texts that came out, whether all calls gave the same numbers); None where
    so many are refused."""
    data = scaled_data(mechanism.kind, _inputs_of_size(mechanism.kind, tried, n), 1.0)
    try:
        block = draw_transcripts(mechanism, [data], SIZE_CALLS, clock)
    except InputRefused:
        return None
    return set(block.codes), bool(block.rows.size) and bool((block.rows == block.rows[:1]).all())


# transcripts a side in the first round; in any
FIRST = 96
LEAST = 8
# standard errors taken off the odds in the first round, where a rare outcome has been seen a few
# times
HOPEFUL = 0.5
NOTHING = 1e-6  # below every record that is tried
CERTAIN = 1e6  # the score of what is told apart without exception


@dataclass(frozen=True, eq=False)
class RankedPair:
    """score: largest effect; odds: of outcomes that come back, how much more often one is seen;
    mixed: these are marks beside noise."""

    pair: NeighbouringInputs
    score: float
    odds: float = 0.0
    mixed: bool = False


def rank_by_odds(ranked: Sequence[RankedPair]) -> list[RankedPair]:
    """Those whose outcomes come back with other odds, the best of each size of data first, then the
    second of each."""
    at: Counter[tuple[Any, ...]] = Counter()
    order: list[tuple[int, int, RankedPair]] = []
    for one in sorted((one for one in ranked if one.odds > 0), key=lambda one: -one.odds):
        size = size_of_data(one.pair.present)
        order.append((at[size], len(order), one))
        at[size] += 1
    return [one for _, _, one in sorted(order, key=lambda row: row[:2])]


def pairs_of_record_alone(ranked: Sequence[RankedPair]) -> list[RankedPair]:
    """Those whose data hold nothing but the record: at the ends of a range a record shifts least,
    and its odds may be highest."""
    return [one for one in ranked if is_quiet(one.pair.absent, NOTHING)]


def size_of_data(data: Data) -> tuple[Any, ...]:
    """What tells tables of other sizes, and crowds or updates of other numbers, from each other."""
    if isinstance(data, np.ndarray):
        return data.shape
    return (len(data[0]), len(data[0][0])) if isinstance(data, tuple) else (len(data),)


def screen_pairs(
    mechanism: BlackBox,
    pairs: Sequence[NeighbouringInputs],
    around: Callable[[Data], list[Data]],
    clock: CallBudget,
    share: float,
    *,
    keep: int,
) -> tuple[list[RankedPair], list[tuple[NeighbouringInputs, str]]]:
    """The ``keep`` most promising pairs, best first, and the refused ones with what was said.
    share: of what is left."""
    budget = clock.split_share(mechanism, share)
    refusals: list[tuple[NeighbouringInputs, str]] = []
    kept = list(pairs)
    count = FIRST
    ranked = [RankedPair(pair, 0.0) for pair in pairs[:keep]]
    errors = HOPEFUL
    while kept:
        room = (
            budget.calls_left(mechanism) / len(around(kept[0].present)) / 3
        )  # a third of what is left for each round
        affordable = int(room / (2 * LEAST))
        if affordable < 1:
            break
        if affordable < len(kept):
            kept = [kept[int(i)] for i in np.linspace(0, len(kept) - 1, affordable)]
        n = max(LEAST, min(count, int(room / (2 * len(kept)))))
        found = []
        for pair in kept:
            try:
                sides = (around(side) for side in (pair.present, pair.absent))
                one, other = (draw_transcripts(mechanism, side, n, clock) for side in sides)
            except InputRefused as no:
                refusals.append((pair, str(no)))
                continue
            seen = effect_size(one, other, pair.axis), outcome_odds(one, other, errors)
            found.append(RankedPair(pair, *seen, mixed=not comes_back(one, other)))
        ranked = sorted(found, key=lambda one: -one.score) or ranked
        if len(ranked) <= keep:
            break
        errors = min(2 * errors, 2.0)
        kept = [one.pair for one in _best_pairs(ranked, max(keep, len(ranked) // 4))]
        count = count * 4
    return _best_pairs(ranked, keep), refusals


def _best_pairs(ranked: list[RankedPair], count: int) -> list[RankedPair]:
    """The ``count`` best; up to a third of the places are for the best odds, and two for records
    that are alone."""
    chosen = rank_by_odds(ranked)[: count // 3]
    chosen += [
        one for one in pairs_of_record_alone(ranked)[: min(2, count // 3)] if one not in chosen
    ]
    rest = [one for one in ranked if one not in chosen][: count - len(chosen)]
    return [one for one in ranked if one in chosen or one in rest]


def outcome_odds(present: Transcripts, absent: Transcripts, errors: float) -> float:
    """The largest change of the log odds of one outcome, or of one mark where none comes back, less
    ``errors`` standard errors."""
    if comes_back(present, absent):
        seen = [Counter(discrete_outcomes(block)) for block in (present, absent)]
        counts = np.array([[one[x] + 0.5 for one in seen] for x in seen[0] | seen[1]])
    elif (marks := ReleaseMarks.from_sides(present, absent, values=MIN_VALUES)) is not None:
        counts = np.stack([marks.find_marks(block).sum(0) + 0.5 for block in (present, absent)], 1)
    else:
        return 0.0
    change = np.abs(np.log(counts[:, 0] / counts[:, 1])) - errors * np.sqrt((1 / counts).sum(1))
    return max(0.0, float(change.max()))


def effect_size(present: Transcripts, absent: Transcripts, axis: np.ndarray | None) -> float:
    """The largest effect of any statistic, in standard deviations: learned on one half, seen on the
    other."""
    first, second = zip(present.split_half(), absent.split_half())
    best = 0.0
    for how, statistic in learn_statistics(first[0], first[1], axis).items():
        a = statistic(second[0])
        b = statistic(second[1])
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            continue
        gap = abs(float(a.mean() - b.mean()))
        spread = math.sqrt((float(a.var()) + float(b.var())) / 2)
        if spread <= 1e-9 * gap:
            effect = CERTAIN if gap else 0.0
        else:
            effect = min(gap / spread, CERTAIN) * (1.0 if how.startswith("shift") else 0.7)
        best = max(best, effect)
    return best

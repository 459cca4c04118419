"""Games in which the record is a secret among very many candidates, to be identified from what is
released."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import betaincinv

from attacks.epsilon import best_cosine_threshold, bound_from_cosines, bound_from_identifications
from privdd.blackbox.distinguishers import NoiseMetric
from privdd.blackbox.inputs import HEAVY, LARGE, InputShapes, scaled_data, split_vector, total_size
from privdd.blackbox.mechanism import (
    BlackBox,
    BoundLevel,
    CallBudget,
    Data,
    InputRefused,
    Outcomes,
    draw_transcripts,
)

# ln of the chance of a hit is below -(the epsilon asked for + ROOM): one hit among thousands is
# enough
ROOM = 16.0
PIECES = 32  # at most so many are compared with one another
LEAST = -600.0  # ln of the smallest chance that floats resolve


@dataclass(frozen=True)
class GameSetting:
    """A mechanism and what may be spent on it. asked: the epsilon that a bound should exceed."""

    mechanism: BlackBox
    clock: CallBudget
    rng: np.random.Generator
    asked: float
    level: BoundLevel

    @property
    def log_chance(self) -> float:
        """ln of the chance of a hit, so small that one hit refutes what is asked."""
        return max(-(self.asked + ROOM), LEAST)

    def draw_directions(self, count: int, dimensions: int) -> np.ndarray:
        """Unit vectors (count, dimensions)."""
        s = self.rng.standard_normal((count, dimensions))
        return s / np.linalg.norm(s, axis=1, keepdims=True)


def bound_from_pieces(
    records: np.ndarray, outputs: np.ndarray, log_chance: float, level: BoundLevel
) -> float | None:
    """Lower bound on epsilon from unit records (n, m) and releases (n, M); None where M is no
    multiple of m, or m < 3. Where the noise is missing, a piece as long as the record is the
    record, scaled; where the same noise is used twice, the difference or sum of two pieces is. The
    chance of a hit is fixed before, so small that one refutes ``asked``."""
    n, m = records.shape
    if m < 3 or not outputs.shape[1] or outputs.shape[1] % m:
        return None
    won = int(pieces_along_record(records, outputs, log_chance).sum())
    return bound_from_identifications(
        won, n, -log_chance, delta=level.delta, confidence=level.confidence
    )


def pieces_along_record(records: np.ndarray, outputs: np.ndarray, log_chance: float) -> np.ndarray:
    """(n,) bool: whether any piece, sum or difference is along the record; by chance at most
    e^log_chance are: the square of the sine between a fixed line and a random direction has the law
    Beta((m-1)/2, 1/2)."""
    n, m = records.shape
    pieces = outputs.reshape(n, -1, m)
    k = pieces.shape[1]
    looks = k * k if k <= PIECES else k  # Bonferroni over them
    at = betaincinv((m - 1) / 2, 0.5, math.exp(log_chance - math.log(looks)))
    found = (_piece_sines(pieces, records) ** 2 <= at).any(1)
    for lag in range(1, k if k <= PIECES else 1):
        for sign in (-1.0, 1.0):
            found |= (
                _piece_sines(pieces[:, lag:] + sign * pieces[:, :-lag], records) ** 2 <= at
            ).any(1)
    return found


def _piece_sines(pieces: np.ndarray, records: np.ndarray) -> np.ndarray:
    """(n, k, m), (n, m) -> (n, k): the sine of the angle between a piece, or its negative, and the
    record; 1 for zeros."""
    along = np.einsum("nkm,nm->nk", pieces, records)
    rest = np.linalg.norm(pieces - along[:, :, None] * records[:, None], axis=2)
    size = np.hypot(along, rest)
    return np.where(size > 0, rest / np.where(size > 0, size, 1.0), 1.0)


@dataclass(frozen=True)
class DirectionGame:
    """with_record: unit vector (m,) -> data that holds a record in this direction; says: which
    data; tried: inputs of these sizes."""

    dimensions: int
    with_record: Callable[[np.ndarray], Data]
    says: str
    tried: InputShapes = InputShapes()

    def without_record(self) -> Data:
        """The same data where the record holds nothing."""
        return self.with_record(np.full(self.dimensions, self.tried.nothing / LARGE))


@dataclass(frozen=True)
class DirectionGameResult:
    """epsilon: lower bound; cosine: the median that was reached; pieces: another bound, from pieces
    of the release as they are, None where it has none; worst: the direction (m,) in which records
    show most, None where no decoder was learned."""

    epsilon: float
    cosine: float
    says: str
    transcripts: int
    pieces: float | None = None
    worst: np.ndarray | None = None


def direction_games(kind: str, tried: InputShapes) -> Iterator[DirectionGame]:
    """Games in which the other records are none, zeros, or records that cancel the one in
    question."""
    if kind == "records":
        for n, d in tried.tables[1:3] or tried.tables:
            if d > 1 and n > 1:
                make = partial(_table_data, n=n, nothing=tried.nothing)
                one = replace(tried, tables=((n, d),))
                yield DirectionGame(d, make, f"a record among {n} rows of zeros", one)
        return
    for shapes in tried.structures[:3]:
        m = total_size(shapes)
        one = replace(tried, structures=(shapes,), crowds=tried.crowds[-1:])
        if kind == "update":
            make = partial(_update_data, shapes=shapes)
            says = f"an update of {len(shapes)} array(s)"
        else:
            k = tried.crowds[-1]
            make = partial(_crowd_data, k=k, shapes=shapes, nothing=tried.nothing)
            says = f"one of {k} clients, weights {HEAVY} : {k - 1} x 100"
        if m > 1:
            yield DirectionGame(m, make, says, one)


def _update_data(s: np.ndarray, shapes: tuple[tuple[int, ...], ...]) -> Data:
    return split_vector(s * LARGE, shapes)


def _table_data(s: np.ndarray, n: int, nothing: float) -> np.ndarray:
    rows = np.full((n, len(s)), nothing)
    rows[n // 2] = s * LARGE
    return rows


def _crowd_data(s: np.ndarray, k: int, shapes: tuple[tuple[int, ...], ...], nothing: float) -> Data:
    rest = [split_vector(np.full(len(s), nothing), shapes) for _ in range(k - 1)]
    return [split_vector(s * LARGE, shapes), *rest], [HEAVY] + [100] * (k - 1)


def play_direction_game(
    setting: GameSetting, game: DirectionGame, around: Callable[[Data], list[Data]], count: int
) -> DirectionGameResult:
    """The record is drawn on a sphere, and its direction read back from the release by a linear
    decoder in the noise's metric. Half of ``count`` games teach the decoder, a tenth chooses the
    threshold, the rest decide. The chance of a guess is known exactly, so the bound holds for any
    mechanism. around: data -> the calls of a transcript; the same data several times is summed,
        other data before and after is looked at jointly."""
    s = setting.draw_directions(count, game.dimensions)
    level = setting.level
    found = []
    same = True
    for one in s:
        inputs = around(game.with_record(one))
        same = all(other is inputs[0] for other in inputs)
        found.append(
            draw_transcripts(setting.mechanism, inputs, 1, setting.clock, joined=not same).rows
        )
    shapes = {rows.shape for rows in found}
    if len(shapes) != 1 or not found[0].size:
        return DirectionGameResult(0.0, 0.0, game.says, count)
    rows = np.concatenate(found)
    pieces = bound_from_pieces(s, rows.reshape(count, -1), setting.log_chance, level)
    outputs = rows.sum(1)
    learn = count // 2
    choose = count * 6 // 10
    decode, worst = _fit_decoder(s[:learn], outputs[:learn])
    guesses = decode(outputs[learn:])
    cosines = np.einsum("ij,ij->i", guesses, s[learn:])
    at = best_cosine_threshold(cosines[: choose - learn], game.dimensions, level.delta)
    judged = cosines[choose - learn :]
    bound = bound_from_cosines(
        judged, at, game.dimensions, delta=level.delta, confidence=level.confidence
    )
    return DirectionGameResult(bound, float(np.median(judged)), game.says, count, pieces, worst)


def _fit_decoder(
    s: np.ndarray, outputs: np.ndarray
) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]:
    """Decoder of outputs (n, M) into unit vectors (n, m), by least squares with s of mean 0 and
    covariance 1/m; and the direction (m,) that moves the output furthest, in units of the noise."""
    centre = outputs.mean(0)
    mixing, *_ = np.linalg.lstsq(s, outputs - centre, rcond=None)  # (m, M)
    residuals = outputs - centre - s @ mixing
    metric = NoiseMetric.from_sides(residuals)
    weights = metric.whiten_vector(mixing)  # (m, M)
    inner = weights @ mixing.T
    worst = np.linalg.eigh((inner + inner.T) / 2)[1][:, -1]
    scale = 1 / np.sqrt(
        np.maximum(np.diag(inner), s.shape[1])
    )  # numbers without noise weigh 1e20 and more
    known = scale[:, None] * (inner + s.shape[1] * np.eye(s.shape[1])) * scale
    weights = scale[:, None] * np.linalg.lstsq(known, scale[:, None] * weights, rcond=1e-12)[0]

    def decode_outputs(new: np.ndarray) -> np.ndarray:
        guess = (new - centre) @ weights.T
        norms = np.linalg.norm(guess, axis=1, keepdims=True)
        good = np.isfinite(guess).all(1, keepdims=True) & (norms > 0)
        return np.where(good, guess / np.where(good, norms, 1.0), 1 / np.sqrt(guess.shape[1]))

    return decode_outputs, worst


# instances; calls of each, and fewer than which tell nothing new
RUNS = 30
SERIES_CALLS = 300
FEWEST_SERIES_CALLS = 30


def bound_series(
    setting: GameSetting, game: DirectionGame, calls: int, *, late: bool
) -> float | None:
    """A lower bound on epsilon of one call, for any mechanism, from ``RUNS`` instances, each called
    many times; None where releases have no pieces (``bound_from_pieces``). The calls of one
    instance need not be independent; the instances are.

    Each call is on a record of its own: the chance that any of T releases points along its record
        is at most T times what the statement allows one (the union bound). late: only the last call
        is on a record, those before it on public data; where
    its noise repeats that of any of them, their difference points along the record.
    """
    won = 0
    level = setting.level
    log_chance = setting.log_chance
    for _ in range(RUNS):
        s = setting.draw_directions(1 if late else calls, game.dimensions)
        inputs = [*[game.without_record()] * (calls - len(s)), *map(game.with_record, s)]
        rows = draw_transcripts(setting.mechanism, inputs, 1, setting.clock).rows[0]
        if (
            len(rows) != calls
            or not rows.shape[1]
            or rows.shape[1] % game.dimensions
            or game.dimensions < 3
        ):
            return None
        if late:
            rows = np.stack([rows[-1] - rows[:-1], rows[-1] + rows[:-1]]).reshape(1, -1)
        won += bool(pieces_along_record(s, rows, log_chance).any())
    at_once = 1 if late else calls
    chance = -log_chance - math.log(at_once)
    delta = at_once * level.delta
    return bound_from_identifications(won, RUNS, chance, delta=delta, confidence=level.confidence)


HIDDEN_CALLS = 24
HIDDEN_GAMES = 200  # each call is the record's in eight of them


def bound_hidden_call(
    setting: GameSetting, game: DirectionGame, count: int, calls: int = HIDDEN_CALLS
) -> float | None:
    """The same from ``count`` transcripts of ``calls`` calls, one of them on the record, at each
    place in turn: meets noise that is left out now and then, comes from a pool, or is repeated."""
    s = setting.draw_directions(count, game.dimensions)
    rows = []
    for at, record in enumerate(s):
        inputs = [game.without_record()] * calls
        inputs[at % calls] = game.with_record(record)
        rows.append(
            draw_transcripts(setting.mechanism, inputs, 1, setting.clock, joined=True).rows.reshape(
                -1
            )
        )
    if len({len(row) for row in rows}) != 1 or len(rows[0]) % calls:
        return None
    return bound_from_pieces(s, np.stack(rows), setting.log_chance, setting.level)


# norms of the candidates
SMALLEST = 1e-2
LARGEST = 1e2
LOOKUP_GAMES = 40
REPEATS = 3
SHOWN = 3
Part = tuple[str, bytes]


@dataclass(frozen=True)
class Identification:
    """epsilon: lower bound at the asked confidence; won: of how many names; place: which number of
    the release, from 0, told them; candidates: names that there were."""

    epsilon: float
    won: int
    place: int = 0
    candidates: int = 0


def play_lookup_game(
    setting: GameSetting, game: DirectionGame, candidates: Callable[[], int]
) -> Identification | None:
    """What is the same in every call on the same data (seeds made of the data, texts, shapes) is
    looked up in a table of one call for each candidate. None where nothing repeats, or the same for
    all. candidates: -> how many, asked once it is worth it."""
    mechanism = setting.mechanism
    rng = setting.rng
    seed = int(rng.integers(2**62))
    part = _repeating_part(mechanism, game, seed)
    if part is None:
        return None
    count = candidates()
    table = dict[Part, int]()
    for at in range(count):
        table.setdefault(part(mechanism.transcript([_candidate_data(game, seed, at)])), at)
    if not table:
        return None
    won = 0
    for secret in rng.integers(count, size=LOOKUP_GAMES):
        seen = part(mechanism.transcript([_candidate_data(game, seed, int(secret))]))
        won += table.get(seen, -1) == int(secret)
    bound = _bound_names(won, LOOKUP_GAMES, count, setting.level)
    return Identification(bound, won, candidates=count)


def _bound_names(won: int, games: int, candidates: int, level: BoundLevel) -> float:
    return bound_from_identifications(
        won, games, math.log(candidates), delta=level.delta, confidence=level.confidence
    )


def _candidate_data(game: DirectionGame, seed: int, at: int) -> Data:
    """The record number ``at``: its direction and norm drawn by the seed."""
    rng = np.random.default_rng([seed, at])
    s = rng.standard_normal(game.dimensions)
    size = SMALLEST * (LARGEST / SMALLEST) ** rng.random()
    return game.with_record(s / np.linalg.norm(s) * size / LARGE)


def _repeating_part(
    mechanism: BlackBox, game: DirectionGame, seed: int
) -> Callable[[Outcomes], Part] | None:
    """What to keep of a release: the numbers and words that repeat; None if they are alike for a
    few candidates."""
    seen = [
        [mechanism.transcript([_candidate_data(game, seed, at)]) for _ in range(REPEATS)]
        for at in range(SHOWN)
    ]
    if len({one.numbers.shape for same in seen for one in same}) == 1:
        values = np.array([[one.numbers for one in same] for same in seen])
        places = (values == values[:, :1]).all((0, 1))
    else:
        places = np.zeros(0, bool)
    words = all(len({one.signature for one in same}) == 1 for same in seen)

    def keep_repeating(one: Outcomes) -> Part:
        kept = one.numbers[places] if len(one.numbers) == len(places) else one.numbers[:0]
        return one.signature if words else "", kept.tobytes()

    return keep_repeating if len({keep_repeating(same[0]) for same in seen}) > 1 else None


CANDIDATES = 2**22  # secret factors, equally far apart on a log scale
GAMES = 16
RANGES = ((1e-3, 1e-2), (0.1, 1.0), (2.0, 20.0), (1e2, 1e4))


def find_noiseless_number(
    mechanism: BlackBox,
    tried: InputShapes,
    clock: CallBudget,
    rng: np.random.Generator,
    next_level: Callable[[], BoundLevel],
) -> Identification | None:
    """The first number without noise that tells the record's size, scaled by a secret factor that
    is found by calling the mechanism on guesses; None where there is none. next_level: each place
    that is tried is a test."""
    make = partial(scaled_data, mechanism.kind, tried)

    def released_number(factor: float, place: int) -> float:
        return float(draw_transcripts(mechanism, [make(factor)], 1, clock).rows[0, 0, place])

    for low, high in RANGES:
        for place, rising in _revealing_places(mechanism, make, low, high, clock):
            number = partial(released_number, place=place)
            won = sum(
                _wins_size_game(number, rising, (low, high), int(rng.integers(CANDIDATES)))
                for _ in range(GAMES)
            )
            bound = _bound_names(won, GAMES, CANDIDATES, next_level())
            if bound > 0:
                return Identification(bound, won, place)
    return None


def _revealing_places(
    mechanism: BlackBox, make: Callable[[float], Data], low: float, high: float, clock: CallBudget
) -> Iterator[tuple[int, bool]]:
    """Places whose numbers repeat exactly and move one way with the factor; whether upwards. At
    most 4."""
    seen = []
    for factor in np.geomspace(low, high, 6):
        try:
            block = draw_transcripts(mechanism, [make(factor)], 3, clock)
        except InputRefused:
            return
        seen.append(block.rows[:, 0])
    if len({rows.shape for rows in seen}) != 1:
        return
    values = np.stack(seen)  # (factors, 3, m)
    repeats = (values == values[:, :1]).all((0, 1))
    steps = np.diff(values[:, 0], axis=0)
    places = np.flatnonzero(repeats & ((steps > 0).all(0) | (steps < 0).all(0)))
    yield from ((int(j), bool(steps[0, j] > 0)) for j in places[:4])


def _wins_size_game(
    number: Callable[[float], float], rising: bool, ends: tuple[float, float], secret: int
) -> bool:
    """One game: look at the number of the secret factor, and find the factor by bisection."""
    width = math.log(ends[1] / ends[0])
    number_of = lambda index: number(ends[0] * math.exp(width * index / CANDIDATES))  # noqa: E731
    seen = number_of(secret)
    low = -0.5
    high = CANDIDATES - 0.5
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (middle, high) if (number_of(middle) < seen) == rising else (low, middle)
    return round((low + high) / 2) == secret

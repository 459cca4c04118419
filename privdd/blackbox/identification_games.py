"""Games in which the record is a secret among very many candidates, to be identified from what is
released."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import betaincinv

from attacks.identification import (
    best_cosine_threshold,
    bound_from_cosines,
    bound_from_identifications,
)
from privdd.blackbox.budgets import BoundLevel, CallBudget
from privdd.blackbox.inputs import HEAVY, LARGE, InputShapes, scaled_data, split_vector, total_size
from privdd.blackbox.mechanism import BlackBox, Data, InputRefused, Outcomes
from privdd.blackbox.noise_metric import NoiseMetric
from privdd.blackbox.transcripts import draw_transcripts

# ln of the chance of a hit is below -(the epsilon asked for + ROOM): one hit among thousands is
# enough
ROOM = 16.0
PIECES = 32  # at most so many are compared with one another
LEAST = -600.0  # ln of the smallest chance that floats resolve
# of a game of directions: instances, calls of each, and fewer than which tell nothing new
RUNS = 30
SERIES_CALLS = 300
FEWEST_SERIES_CALLS = 30
# of a game of one call among many: its calls, and transcripts (each call is the record's in eight)
HIDDEN_CALLS = 24
HIDDEN_GAMES = 200
# of the game of sizes: secret factors, equally far apart on a log scale in each range; its rounds
CANDIDATES = 2**22
GAMES = 16
RANGES = ((1e-3, 1e-2), (0.1, 1.0), (2.0, 20.0), (1e2, 1e4))
FACTORS = 6  # that are looked at in a range
FACTOR_CALLS = 3  # on each
MOST_PLACES = 4  # numbers of a release that are tried in a range


@dataclass(frozen=True)
class LookupRules:
    """Of the game of candidates in a table.

    Attributes:
        smallest: norm of a candidate; largest: the same.
        games: secrets to identify.
        repeats: calls on each of ``examples`` candidates that show what repeats.
    """

    smallest: float = 1e-2
    largest: float = 1e2
    games: int = 40
    repeats: int = 3
    examples: int = 3


LOOKUP = LookupRules()

Part = tuple[str, bytes]  # words and numbers of a release


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
    """Lower bound on epsilon from pieces of the release that point along the record.

    epsilon >= ln((p_low - delta) / e^log_chance) with Clopper and Pearson's lower limit of the
    share of hits, whose chance without the record is known and not estimated. Without noise, a
    piece as long as the record is the record, scaled; if the same noise is used twice, the
    difference or sum of two pieces is. The chance of a hit is fixed before, so small that one
    refutes ``asked``.

    Args:
        records: (n, m) unit vectors.
        outputs: (n, M) releases.
        log_chance: ln of the chance of a hit.
        level: delta and confidence.

    Returns:
        None if M is no multiple of m, or m < 3.
    """
    n, m = records.shape
    if m < 3 or not outputs.shape[1] or outputs.shape[1] % m:
        return None
    hits = int(pieces_along_record(records, outputs, log_chance).sum())
    return bound_from_identifications(
        hits, n, -log_chance, delta=level.delta, confidence=level.confidence
    )


def pieces_along_record(records: np.ndarray, outputs: np.ndarray, log_chance: float) -> np.ndarray:
    """Whether any piece, sum or difference of two is along the record.

    By chance at most e^log_chance are: sin^2 of the angle between a fixed line and a random
    direction in m dimensions has the law Beta((m - 1) / 2, 1 / 2), so the threshold is its quantile
    at e^log_chance over the number of pieces, sums and differences (Bonferroni).

    Args:
        records: (n, m) unit vectors.
        outputs: (n, k m) releases of k pieces.
        log_chance: ln of the chance of a hit.

    Returns:
        (n,) bool.
    """
    n, m = records.shape
    pieces = outputs.reshape(n, -1, m)
    k = pieces.shape[1]
    combined = k <= PIECES
    looks = k * k if combined else k
    threshold = betaincinv((m - 1) / 2, 0.5, math.exp(log_chance - math.log(looks)))
    is_hit = (_piece_sines(pieces, records) ** 2 <= threshold).any(1)
    if not combined:
        return is_hit
    for lag in range(1, k):
        for sign in (-1.0, 1.0):
            pairs = pieces[:, lag:] + sign * pieces[:, :-lag]
            is_hit |= (_piece_sines(pairs, records) ** 2 <= threshold).any(1)
    return is_hit


def _piece_sines(pieces: np.ndarray, records: np.ndarray) -> np.ndarray:
    """(n, k, m), (n, m) -> (n, k): the sine of the angle between a piece, or its negative, and the
    record; 1 for zeros."""
    along = np.einsum("nkm,nm->nk", pieces, records)
    rest = np.linalg.norm(pieces - along[:, :, None] * records[:, None], axis=2)
    size = np.hypot(along, rest)
    return np.where(size > 0, rest / np.where(size > 0, size, 1.0), 1.0)


@dataclass(frozen=True)
class DirectionGame:
    """Data with a record in a secret direction.

    Attributes:
        dimensions: m, of the record.
        with_record: unit vector (m,) -> data that holds a record in this direction.
        says: which data.
        tried: inputs of these sizes.
    """

    dimensions: int
    with_record: Callable[[np.ndarray], Data]
    says: str
    tried: InputShapes = InputShapes()

    def without_record(self) -> Data:
        """The same data if the record holds nothing."""
        return self.with_record(np.full(self.dimensions, self.tried.nothing / LARGE))


@dataclass(frozen=True)
class DirectionGameResult:
    """What a game of directions told.

    Attributes:
        epsilon: lower bound.
        cosine: the median that was reached.
        says: which data.
        transcripts: games.
        pieces: another bound, from pieces of the release as they are; None if it has none.
        worst: (m,) the direction in which records show most; None if no decoder was learned.
    """

    epsilon: float
    cosine: float
    says: str
    transcripts: int
    pieces: float | None = None
    worst: np.ndarray | None = None


def direction_games(kind: str, tried: InputShapes) -> Iterator[DirectionGame]:
    """Games in which the other records are none, zeros, or records that cancel the one in
    question.

    Args:
        kind: of mechanism: update, aggregate or records.
        tried: sizes of inputs.
    """
    if kind == "records":
        return _table_games(tried)
    return _update_games(kind, tried)


def _table_games(tried: InputShapes) -> Iterator[DirectionGame]:
    for n, d in tried.tables[1:3] or tried.tables:
        if d > 1 and n > 1:
            with_record = partial(_table_data, n=n, nothing=tried.nothing)
            sizes = replace(tried, tables=((n, d),))
            yield DirectionGame(d, with_record, f"a record among {n} rows of zeros", sizes)


def _update_games(kind: str, tried: InputShapes) -> Iterator[DirectionGame]:
    for shapes in tried.structures[:3]:
        m = total_size(shapes)
        if m <= 1:
            continue
        with_record: Callable[[np.ndarray], Data]
        if kind == "update":
            with_record = partial(_update_data, shapes=shapes)
            says = f"an update of {len(shapes)} array(s)"
        else:
            clients = tried.crowds[-1]
            with_record = partial(_crowd_data, k=clients, shapes=shapes, nothing=tried.nothing)
            says = f"one of {clients} clients, weights {HEAVY} : {clients - 1} x 100"
        sizes = replace(tried, structures=(shapes,), crowds=tried.crowds[-1:])
        yield DirectionGame(m, with_record, says, sizes)


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
    setting: GameSetting,
    game: DirectionGame,
    calls_of: Callable[[Data], list[Data]],
    count: int,
) -> DirectionGameResult:
    """The record is drawn on a sphere, and its direction read back from the release by a linear
    decoder in the noise's metric.

    Half of ``count`` games teach the decoder, a tenth chooses the threshold c, the rest decide:
    epsilon >= ln((p_low - delta) / P(cos >= c)), where the chance of a guess, P(cos >= c) of a
    uniform direction, is known exactly. So the bound holds for any mechanism and has no ceiling at
    the logarithm of the number of games.

    Args:
        setting: the mechanism, and what may be spent.
        game: which data hold the record.
        calls_of: data -> the calls of a transcript; the same data several times is summed, other
            data before and after is looked at jointly.
        count: games.

    Raises:
        InputRefused: the mechanism raised an error.
        OutOfTime: the budget is spent.
    """
    directions = setting.draw_directions(count, game.dimensions)
    level = setting.level
    releases = []
    is_summed = True
    for direction in directions:
        inputs = calls_of(game.with_record(direction))
        is_summed = all(data is inputs[0] for data in inputs)
        block = draw_transcripts(setting.mechanism, inputs, 1, setting.clock, joined=not is_summed)
        releases.append(block.rows)
    shapes = {rows.shape for rows in releases}
    if len(shapes) != 1 or not releases[0].size:
        return DirectionGameResult(0.0, 0.0, game.says, count)
    rows = np.concatenate(releases)
    pieces = bound_from_pieces(directions, rows.reshape(count, -1), setting.log_chance, level)
    outputs = rows.sum(1)
    learn = count // 2
    choose = count * 6 // 10
    decode, worst = _fit_decoder(directions[:learn], outputs[:learn])
    guesses = decode(outputs[learn:])
    cosines = np.einsum("ij,ij->i", guesses, directions[learn:])
    threshold = best_cosine_threshold(cosines[: choose - learn], game.dimensions, level.delta)
    judged = cosines[choose - learn :]
    bound = bound_from_cosines(
        judged, threshold, game.dimensions, delta=level.delta, confidence=level.confidence
    )
    return DirectionGameResult(bound, float(np.median(judged)), game.says, count, pieces, worst)


def _fit_decoder(
    directions: np.ndarray, outputs: np.ndarray
) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]:
    """A linear decoder, by the posterior mean of a linear model.
    For o = centre + B^T s + noise of covariance Sigma and s of mean 0 and covariance I / m, the
    best linear guess is (B Sigma^-1 B^T + m I)^-1 B Sigma^-1 (o - centre), with B by least squares.
    The direction that shows most is the first eigenvector of B Sigma^-1 B^T.

    Args:
        directions: (n, m) unit vectors.
        outputs: (n, M) releases.

    Returns:
        (decoder of outputs (n, M) into unit vectors (n, m), the direction (m,) that moves the
        output furthest, in units of the noise).
    """
    centre = outputs.mean(0)
    m = directions.shape[1]
    mixing, *_ = np.linalg.lstsq(directions, outputs - centre, rcond=None)  # (m, M)
    residuals = outputs - centre - directions @ mixing
    metric = NoiseMetric.from_sides(residuals)
    whitened = metric.whiten_vector(mixing)  # (m, M)
    inner = whitened @ mixing.T
    _, eigenvectors = np.linalg.eigh((inner + inner.T) / 2)
    # numbers without noise weigh 1e20 and more
    scale = 1 / np.sqrt(np.maximum(np.diag(inner), m))
    posterior = scale[:, None] * (inner + m * np.eye(m)) * scale
    solution, *_ = np.linalg.lstsq(posterior, scale[:, None] * whitened, rcond=1e-12)
    weights = scale[:, None] * solution

    def decode_outputs(new: np.ndarray) -> np.ndarray:
        guess = (new - centre) @ weights.T
        norms = np.linalg.norm(guess, axis=1, keepdims=True)
        is_good = np.isfinite(guess).all(1, keepdims=True) & (norms > 0)
        unit = guess / np.where(is_good, norms, 1.0)
        return np.where(is_good, unit, 1 / np.sqrt(guess.shape[1]))

    return decode_outputs, eigenvectors[:, -1]


def bound_series(
    setting: GameSetting, game: DirectionGame, calls: int, *, late: bool
) -> float | None:
    """A lower bound on epsilon of one call, for any mechanism, from ``RUNS`` instances, each called
    many times. The calls of one instance need not be independent; the instances are.

    epsilon >= ln((p_low - T delta) / (T e^log_chance)): each of T calls is on a record of its own,
    and the chance that any of T releases points along its record is at most T times what the
    statement allows one (the union bound).

    Args:
        setting: the mechanism, and what may be spent. game: which data hold the record. calls: T,
        of each instance. late: whether only the last call is on a record, those before it on public
        data; if its noise
        repeats that of any of them, their difference points along the record. T is 1 then.

    Returns:
        None if releases have no pieces (``bound_from_pieces``).

    Raises:
        InputRefused: the mechanism raised an error.
        OutOfTime: the budget is spent.
    """
    hits = 0
    level = setting.level
    log_chance = setting.log_chance
    records = 1 if late else calls
    for _ in range(RUNS):
        directions = setting.draw_directions(records, game.dimensions)
        public = [game.without_record()] * (calls - records)
        inputs = [*public, *map(game.with_record, directions)]
        rows = draw_transcripts(setting.mechanism, inputs, 1, setting.clock).rows[0]
        if len(rows) != calls or not _has_pieces(rows, game.dimensions):
            return None
        if late:
            gaps = [rows[-1] - rows[:-1], rows[-1] + rows[:-1]]
            rows = np.stack(gaps).reshape(1, -1)
        if pieces_along_record(directions, rows, log_chance).any():
            hits += 1
    cost = -log_chance - math.log(records)
    return bound_from_identifications(
        hits, RUNS, cost, delta=records * level.delta, confidence=level.confidence
    )


def _has_pieces(rows: np.ndarray, dimensions: int) -> bool:
    """Whether releases (n, M) can be cut into pieces as long as the record."""
    width = rows.shape[1]
    return width > 0 and width % dimensions == 0 and dimensions >= 3


def bound_hidden_call(
    setting: GameSetting, game: DirectionGame, count: int, calls: int = HIDDEN_CALLS
) -> float | None:
    """``bound_from_pieces`` of transcripts with one call on the record, at each place in turn:
    meets noise that is left out now and then, comes from a pool, or is repeated.

    Args:
        setting: the mechanism, and what may be spent.
        game: which data hold the record.
        count: transcripts.
        calls: of each.

    Returns:
        None if releases have no pieces.

    Raises:
        InputRefused: the mechanism raised an error.
        OutOfTime: the budget is spent.
    """
    directions = setting.draw_directions(count, game.dimensions)
    releases = []
    for index, direction in enumerate(directions):
        inputs = [game.without_record()] * calls
        inputs[index % calls] = game.with_record(direction)
        block = draw_transcripts(setting.mechanism, inputs, 1, setting.clock, joined=True)
        releases.append(block.rows.reshape(-1))
    if len({len(release) for release in releases}) != 1 or len(releases[0]) % calls:
        return None
    outputs = np.stack(releases)
    return bound_from_pieces(directions, outputs, setting.log_chance, setting.level)


@dataclass(frozen=True)
class Identification:
    """How many secrets were identified.

    Attributes:
        epsilon: lower bound at the confidence that was asked for.
        won: of how many games the secret was named.
        place: which number of the release, from 0, told it.
        candidates: that there were.
    """

    epsilon: float
    won: int
    place: int = 0
    candidates: int = 0


def play_lookup_game(
    setting: GameSetting, game: DirectionGame, candidates: Callable[[], int]
) -> Identification | None:
    """What is the same in every call on the same data (seeds made of the data, texts, shapes) is
    looked up in a table of one call for each candidate.

    Args:
        setting: the mechanism, and what may be spent.
        game: which data hold the record.
        candidates: -> how many, asked once it is worth it.

    Returns:
        None if nothing repeats, or the same for all.

    Raises:
        InputRefused: the mechanism raised an error.
        OutOfTime: the budget is spent.
    """
    mechanism = setting.mechanism
    rng = setting.rng
    seed = int(rng.integers(2**62))
    part_of = _repeating_part(mechanism, game, seed)
    if part_of is None:
        return None
    count = candidates()
    table = dict[Part, int]()
    for index in range(count):
        release = mechanism.transcript([_candidate_data(game, seed, index)])
        table.setdefault(part_of(release), index)
    if not table:
        return None
    won = 0
    for secret in rng.integers(count, size=LOOKUP.games):
        release = mechanism.transcript([_candidate_data(game, seed, int(secret))])
        if table.get(part_of(release), -1) == int(secret):
            won += 1
    bound = _bound_names(won, LOOKUP.games, count, setting.level)
    return Identification(bound, won, candidates=count)


def _bound_names(won: int, games: int, candidates: int, level: BoundLevel) -> float:
    """ln((p_low - delta) N) for N candidates: a guess is right with chance 1 / N."""
    return bound_from_identifications(
        won, games, math.log(candidates), delta=level.delta, confidence=level.confidence
    )


def _candidate_data(game: DirectionGame, seed: int, at: int) -> Data:
    """The record number ``at``: its direction and norm drawn by the seed."""
    rng = np.random.default_rng([seed, at])
    s = rng.standard_normal(game.dimensions)
    norm = LOOKUP.smallest * (LOOKUP.largest / LOOKUP.smallest) ** rng.random()
    return game.with_record(s / np.linalg.norm(s) * norm / LARGE)


def _repeating_part(
    mechanism: BlackBox, game: DirectionGame, seed: int
) -> Callable[[Outcomes], Part] | None:
    """What to keep of a release: the numbers and words that repeat; None if they are alike for a
    few candidates."""
    examples = []
    for index in range(LOOKUP.examples):
        data = [_candidate_data(game, seed, index) for _ in range(LOOKUP.repeats)]
        examples.append([mechanism.transcript([item]) for item in data])
    places = _repeating_places(examples)
    words_repeat = all(len({release.signature for release in repeats}) == 1 for repeats in examples)

    def keep_repeating(release: Outcomes) -> Part:
        fits = len(release.numbers) == len(places)
        if fits:
            numbers = release.numbers[places]
        else:
            numbers = release.numbers[:0]
        return release.signature if words_repeat else "", numbers.tobytes()

    parts = {keep_repeating(repeats[0]) for repeats in examples}
    return keep_repeating if len(parts) > 1 else None


def _repeating_places(examples: list[list[Outcomes]]) -> np.ndarray:
    """(M,) bool: numbers that are the same in all calls on the same data; none if releases differ
    in size."""
    releases = [release for repeats in examples for release in repeats]
    if len({release.numbers.shape for release in releases}) != 1:
        return np.zeros(0, bool)
    values = np.array([[release.numbers for release in repeats] for repeats in examples])
    return np.asarray((values == values[:, :1]).all((0, 1)))


def find_noiseless_number(
    mechanism: BlackBox,
    tried: InputShapes,
    clock: CallBudget,
    rng: np.random.Generator,
    next_level: Callable[[], BoundLevel],
) -> Identification | None:
    """The first number without noise that tells the record's size, scaled by a secret factor that
    is found by calling the mechanism on guesses.

    Args:
        mechanism: what is called.
        tried: sizes of inputs.
        clock: the budget.
        rng: draws the secrets.
        next_level: each place that is tried is a test.

    Returns:
        None if there is no such number.

    Raises:
        InputRefused: the mechanism raised an error.
        OutOfTime: the budget is spent.
    """
    data_of = partial(scaled_data, mechanism.kind, tried)

    def released_number(factor: float, place: int) -> float:
        return float(draw_transcripts(mechanism, [data_of(factor)], 1, clock).rows[0, 0, place])

    for low, high in RANGES:
        for place, rising in _revealing_places(mechanism, data_of, low, high, clock):
            number = partial(released_number, place=place)
            won = 0
            for _ in range(GAMES):
                secret = int(rng.integers(CANDIDATES))
                if _wins_size_game(number, rising, (low, high), secret):
                    won += 1
            bound = _bound_names(won, GAMES, CANDIDATES, next_level())
            if bound > 0:
                return Identification(bound, won, place)
    return None


def _revealing_places(
    mechanism: BlackBox,
    data_of: Callable[[float], Data],
    low: float,
    high: float,
    clock: CallBudget,
) -> Iterator[tuple[int, bool]]:
    """Places whose numbers repeat exactly and move one way with the factor; whether upwards. At
    most 4."""
    blocks = []
    for factor in np.geomspace(low, high, FACTORS):
        try:
            block = draw_transcripts(mechanism, [data_of(factor)], FACTOR_CALLS, clock)
        except InputRefused:
            return
        blocks.append(block.rows[:, 0])
    if len({rows.shape for rows in blocks}) != 1:
        return
    values = np.stack(blocks)  # (factors, 3, m)
    repeats = (values == values[:, :1]).all((0, 1))
    steps = np.diff(values[:, 0], axis=0)
    rises = (steps > 0).all(0)
    falls = (steps < 0).all(0)
    for place in np.flatnonzero(repeats & (rises | falls))[:MOST_PLACES]:
        yield int(place), bool(steps[0, place] > 0)


def _wins_size_game(
    number: Callable[[float], float], rising: bool, ends: tuple[float, float], secret: int
) -> bool:
    """One game: look at the number of the secret factor, and find the factor by bisection."""
    width = math.log(ends[1] / ends[0])

    def number_of(index: float) -> float:
        return number(ends[0] * math.exp(width * index / CANDIDATES))

    released = number_of(secret)
    low = -0.5
    high = CANDIDATES - 0.5
    while high - low > 1:
        middle = (low + high) / 2
        if (number_of(middle) < released) == rising:
            low = middle
        else:
            high = middle
    return round((low + high) / 2) == secret

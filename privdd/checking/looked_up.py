"""Whatever comes out the same in every call on the same data is looked up in a table of one call for each candidate.

Seeds that are made of the data, texts and shapes that tell something of the record, numbers without noise that neither rise nor
fall: the record is one of K, drawn at random, and the part of the release that repeats exactly names it where no other
candidate has the same. Mechanisms with noise in all they release have no such part, and cost a dozen calls here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attacks.naming import from_names
from privdd.checking.called import BlackBox, Data, Outcomes
from privdd.checking.direction_game import DirectionGame
from privdd.checking.neighbours import LARGE

SMALLEST, LARGEST = 1e-2, 1e2  # norms of the candidates
GAMES = 40
REPEATS, SHOWN = 3, 3
Part = tuple[str, bytes]


@dataclass(frozen=True)
class LookedUp:
    """epsilon: lower bound at the asked confidence; won: of GAMES names; candidates: K."""

    epsilon: float
    won: int
    candidates: int


def looked_up(
    mechanism: BlackBox,
    game: DirectionGame,
    candidates: Callable[[], int],
    rng: np.random.Generator,
    *,
    delta: float,
    confidence: float,
) -> LookedUp | None:
    """None where nothing repeats or what repeats is the same for all candidates.

    candidates: -> how many may be tried, asked once it is worth it. Raises Refused.
    """
    seed = int(rng.integers(2**62))
    part = _repeating(mechanism, game, seed)
    if part is None:
        return None
    count = candidates()
    table: dict[Part, int] = {}
    for at in range(count):
        table.setdefault(part(mechanism.transcript([_candidate(game, seed, at)])), at)
    if not table:
        return None
    won = 0
    for secret in rng.integers(count, size=GAMES):
        seen = part(mechanism.transcript([_candidate(game, seed, int(secret))]))
        won += table.get(seen, -1) == int(secret)
    bound = from_names(won, GAMES, math.log(count), delta=delta, confidence=confidence)
    return LookedUp(bound, won, count)


def _candidate(game: DirectionGame, seed: int, at: int) -> Data:
    """The record number ``at``: its direction and norm drawn by the seed."""
    rng = np.random.default_rng([seed, at])
    s = rng.standard_normal(game.dimensions)
    size = SMALLEST * (LARGEST / SMALLEST) ** rng.random()
    return game.with_record(s / np.linalg.norm(s) * size / LARGE)


def _repeating(mechanism: BlackBox, game: DirectionGame, seed: int) -> Callable[[Outcomes], Part] | None:
    """What to keep of a release: the numbers and words that repeat; None if they are alike for a few candidates."""
    seen = [[mechanism.transcript([_candidate(game, seed, at)]) for _ in range(REPEATS)] for at in range(SHOWN)]
    if len({one.numbers.shape for same in seen for one in same}) == 1:
        values = np.array([[one.numbers for one in same] for same in seen])
        places = (values == values[:, :1]).all((0, 1))
    else:
        places = np.zeros(0, bool)
    words = all(len({one.signature for one in same}) == 1 for same in seen)

    def part(one: Outcomes) -> Part:
        kept = one.numbers[places] if len(one.numbers) == len(places) else one.numbers[:0]
        return one.signature if words else "", kept.tobytes()

    return part if len({part(same[0]) for same in seen}) > 1 else None

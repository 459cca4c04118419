"""Many calls of one instance, each on a record of its own: noise that stops after a while, or is left out very rarely.

If every call is as private as stated, the chance that a release points along its record is at most what the statement
allows, and the chance that any of T releases does is at most T times that (the union bound). The calls of one instance
need not be independent; the instances are. A statement about a series of calls says nothing of later ones: none are made.
"""

from __future__ import annotations

import math

import numpy as np

from attacks.naming import from_names
from privdd.checking.called import BlackBox
from privdd.checking.direction_game import DirectionGame
from privdd.checking.pieces import LEAST, ROOM, hits
from privdd.checking.sampled import Clock, drawn

RUNS, CALLS, FEWEST = 30, 300, 30  # instances; calls of each, and fewer than which tell nothing new


def long_run(
    mechanism: BlackBox,
    game: DirectionGame,
    calls: int,
    clock: Clock,
    rng: np.random.Generator,
    *,
    asked: float,
    delta: float,
    confidence: float,
) -> float | None:
    """A lower bound on epsilon of one call, for any mechanism; None where releases have no pieces (``from_pieces``)."""
    log_chance, won = max(-(asked + ROOM), LEAST), 0
    for _ in range(RUNS):
        s = rng.standard_normal((calls, game.dimensions))
        s /= np.linalg.norm(s, axis=1, keepdims=True)
        rows = drawn(mechanism, [game.with_record(one) for one in s], 1, clock).rows[0]
        if len(rows) != calls or not rows.shape[1] or rows.shape[1] % game.dimensions or game.dimensions < 3:
            return None
        won += bool(hits(s, rows, log_chance).any())
    return from_names(won, RUNS, -log_chance - math.log(calls), delta=calls * delta, confidence=confidence)

"""One call on the record after hundreds on public data: does its noise repeat that of any call before it?

Noise from a pool or a ring that is longer than two dozen calls (``one_call``) comes back late. Where it does, the last
release less an earlier one points along the record. Every transcript judges, as in ``pieces``.
"""

from __future__ import annotations

import numpy as np

from attacks.naming import from_names
from privdd.checking.called import BlackBox
from privdd.checking.direction_game import DirectionGame
from privdd.checking.long_run import RUNS
from privdd.checking.pieces import LEAST, ROOM, hits
from privdd.checking.sampled import Clock, drawn


def late_call(
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
    """A lower bound on epsilon, for any mechanism; None where releases have no pieces (``from_pieces``).

    asked: the epsilon that is to be exceeded.
    """
    log_chance, won = max(-(asked + ROOM), LEAST), 0
    for _ in range(RUNS):
        s = rng.standard_normal(game.dimensions)
        s /= np.linalg.norm(s)
        rows = drawn(mechanism, [*[game.without()] * (calls - 1), game.with_record(s)], 1, clock).rows[0]
        if len(rows) != calls or not rows.shape[1] or rows.shape[1] % game.dimensions or game.dimensions < 3:
            return None
        compared = np.stack([rows[-1] - rows[:-1], rows[-1] + rows[:-1]])
        won += bool(hits(s[None], compared.reshape(1, -1), log_chance)[0])
    return from_names(won, RUNS, -log_chance, delta=delta, confidence=confidence)

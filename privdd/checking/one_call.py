"""One call on the record, hidden among many on public data: what does an instance do in some calls only?

The call on the record is the k-th of two dozen, k drawn anew for each transcript, so noise that is left out in every
tenth call, that comes from a pool, or that a later call repeats is met. Judged by ``pieces``.
"""

from __future__ import annotations

import numpy as np

from privdd.checking.called import BlackBox
from privdd.checking.direction_game import DirectionGame
from privdd.checking.pieces import from_pieces
from privdd.checking.sampled import Clock, drawn

CALLS = 24
GAMES = 200  # each call is the record's in eight of them


def hidden_call(
    mechanism: BlackBox,
    game: DirectionGame,
    count: int,
    clock: Clock,
    rng: np.random.Generator,
    *,
    asked: float,
    delta: float,
    confidence: float,
    calls: int = CALLS,
) -> float | None:
    """A lower bound on epsilon from ``count`` transcripts, for any mechanism; None where releases have no pieces.

    asked: the epsilon that is to be exceeded; calls: of each transcript.
    """
    s = rng.standard_normal((count, game.dimensions))
    s /= np.linalg.norm(s, axis=1, keepdims=True)
    public, rows = game.without(), []
    for at, record in enumerate(s):
        inputs = [public] * calls
        inputs[at % calls] = game.with_record(record)
        rows.append(drawn(mechanism, inputs, 1, clock, joined=True).rows.reshape(-1))
    if len({len(row) for row in rows}) != 1 or len(rows[0]) % calls:
        return None
    return from_pieces(s, np.stack(rows), asked=asked, delta=delta, confidence=confidence)

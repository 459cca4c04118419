"""Pieces of a release that point along the record: noise that is left out at times, or comes back in another call.

A release is cut into pieces as long as the record. In a transcript whose noise is missing one piece is the record, scaled;
where the same noise (or its negative) is used twice, the difference (or sum) of two pieces is. Nothing is learned, so
every transcript judges. The angle that counts as a hit is fixed before: the chance that any piece meets it is so
small that a single hit refutes the statement.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betaincinv

from attacks.naming import from_names

ROOM = 16.0  # ln of the chance of a hit is below -(the epsilon asked for + ROOM): one hit among thousands is enough
PIECES = 32  # at most so many are compared with one another
LEAST = -600.0  # ln of the smallest chance that floats resolve


def from_pieces(
    records: np.ndarray, outputs: np.ndarray, *, asked: float, delta: float, confidence: float
) -> float | None:
    """Lower bound on epsilon from unit records (n, m) and releases (n, M); None where M is no multiple of m, or m < 3.

    asked: the epsilon that the bound should exceed if there is a hit. The square of the sine between a fixed line and
    a random direction has the law Beta((m-1)/2, 1/2).
    """
    n, m = records.shape
    if m < 3 or not outputs.shape[1] or outputs.shape[1] % m:
        return None
    log_chance = max(-(asked + ROOM), LEAST)
    won = int(hits(records, outputs, log_chance).sum())
    return from_names(won, n, -log_chance, delta=delta, confidence=confidence)


def hits(records: np.ndarray, outputs: np.ndarray, log_chance: float) -> np.ndarray:
    """(n,) bool: whether any piece, sum or difference is along the record; by chance at most e^log_chance are."""
    n, m = records.shape
    pieces = outputs.reshape(n, -1, m)
    k = pieces.shape[1]
    looks = k * k if k <= PIECES else k  # Bonferroni over them
    at = betaincinv((m - 1) / 2, 0.5, math.exp(log_chance - math.log(looks)))
    found = (_sines(pieces, records) ** 2 <= at).any(1)
    for lag in range(1, k if k <= PIECES else 1):
        for sign in (-1.0, 1.0):
            found |= (_sines(pieces[:, lag:] + sign * pieces[:, :-lag], records) ** 2 <= at).any(1)
    return found


def _sines(pieces: np.ndarray, records: np.ndarray) -> np.ndarray:
    """(n, k, m), (n, m) -> (n, k): the sine of the angle between a piece, or its negative, and the record; 1 for zeros."""
    along = np.einsum("nkm,nm->nk", pieces, records)
    rest = np.linalg.norm(pieces - along[:, :, None] * records[:, None], axis=2)
    size = np.hypot(along, rest)
    return np.where(size > 0, rest / np.where(size > 0, size, 1.0), 1.0)

"""Naming the record: bounds from a secret drawn among very many, with a null that is known exactly.

A game with two hypotheses won n times out of n shows no epsilon above ln n. Where the record is drawn at random from
many, say K, and every one of them has the same neighbour D0 (the data without the record), one look shows more:
P(named) = mean over s of P(M(D_s) in A_s) <= e^epsilon mean over s of P(M(D0) in A_s) + delta, and the last mean is the
chance that a guess which knows nothing of s meets it, whatever the mechanism. For a direction s that is uniform on the
sphere and a guess v: cos(v, s) has the law of one coordinate of the sphere, (1 + Beta((m-1)/2, (m-1)/2)) scaled to
[-1, 1] (its square is Beta(1/2, (m-1)/2)).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from scipy.special import betainc, betaincinv, betaln

LARGEST = 1e9


def log_chance_of_cosine(cosine: np.ndarray, dimensions: int) -> np.ndarray:
    """ln P(cos(v, s) >= cosine) for a fixed v and s uniform on the sphere in ``dimensions`` >= 2; cosine in [-1, 1]."""
    if dimensions < 2:
        raise ValueError(f"dimensions={dimensions}: at least 2 are needed")
    c = np.clip(np.asarray(cosine, dtype=np.float64), -1, 1)
    a = (dimensions - 1) / 2
    with np.errstate(divide="ignore", under="ignore"):
        tail = 0.5 * betainc(a, 0.5, np.maximum(1 - c * c, 0))
        plain = np.log(np.where(c >= 0, tail, 1 - tail))
        # x^a / (a B(a, 1/2)) (1 - x)^(-1/2): the integral of t^(a-1) (1-t)^(-1/2) up to x is below this
        room = np.log(np.maximum(1 - c * c, 1e-300)) * a - math.log(a) - betaln(a, 0.5)
        far = room - 0.5 * np.log(np.maximum(c * c, 1e-300)) + math.log(0.5)
    return np.where((c > 0) & (tail < 1e-250), np.minimum(far, math.log(1e-250)), plain)


def from_cosines(cosines: np.ndarray, threshold: float, dimensions: int, *, delta: float, confidence: float) -> float:
    """Lower bound on epsilon from cosines (n,) of independent games; threshold: fixed before they were seen."""
    values = np.asarray(cosines, dtype=np.float64)
    if values.ndim != 1 or not len(values) or np.isnan(values).any():
        raise ValueError(f"cosines {values.shape}: one-dimensional, not empty and without NaN is needed")
    won = int((values >= threshold).sum())
    return _bound(won, len(values), float(log_chance_of_cosine(np.array(threshold), dimensions)), delta, confidence)


def from_names(won: int, games: int, log_candidates: float, *, delta: float, confidence: float) -> float:
    """Lower bound on epsilon from ``won`` of ``games``, each a name among e^log_candidates equally likely ones."""
    if not 0 <= won <= games or games < 1:
        raise ValueError(f"won={won}, games={games}: at most the games, and at least one of them, is needed")
    return _bound(won, games, -log_candidates, delta, confidence)


def _bound(won: int, games: int, log_chance: float, delta: float, confidence: float) -> float:
    share = float(betaincinv(won, games - won + 1, 1 - confidence)) if won else 0.0  # Clopper-Pearson, from below
    if share <= delta:
        return 0.0
    return min(max(math.log(share - delta) - log_chance, 0.0), LARGEST)


def best_cosine(cosines: np.ndarray, dimensions: int, delta: float) -> float:
    """The threshold that bounds most on these games, to be used on others: one that a tenth of them reach at least."""
    ordered = np.sort(np.asarray(cosines, dtype=np.float64))
    n = len(ordered)
    at = np.unique(np.linspace(0, max(0, n - max(5, n // 10)), 60).astype(int))
    won = n - at
    share = stats.beta.ppf(0.05, won, n - won + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = np.log(np.maximum(share - delta, 1e-300)) - log_chance_of_cosine(ordered[at], dimensions)
    return float(ordered[at][int(np.argmax(gains))])

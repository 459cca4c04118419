"""Lower bounds on epsilon from a record that is identified among very many.

Imports no torch."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainc, betaln

from attacks.statistics import lower_limit

LARGEST_BOUND = 1e9
SMALLEST_LOG_TAIL = math.log(1e-250)  # below this, betainc underflows and its bound is used


# Bounds from a secret s drawn among very many, with a null that is known exactly. A game with two
# hypotheses won n times out of n shows no epsilon above ln n. If the record is drawn at random from
# many, and all of them have the same neighbour D0 (the data without the record), one game shows
# more:
#     P(identified) = E_s P(M(D_s) in A_s)  <=  e^epsilon E_s P(M(D0) in A_s) + delta,
# and the last mean is the chance p0 that a guess which knows nothing of s meets it, whatever the
# mechanism. With a lower limit p of the share of games won,
#     epsilon >= ln((p - delta) / p0).
# For a direction s that is uniform on the sphere in m dimensions and a guess v, cos(v, s) has the
# law of one coordinate of the sphere: (1 + cos) / 2 ~ Beta((m-1)/2, (m-1)/2), and cos^2 ~ Beta(1/2,
# (m-1)/2).


def log_chance_of_cosine(cosine: np.ndarray, dimensions: int) -> np.ndarray:
    """ln P(cos(v, s) >= cosine) for a fixed v and s uniform on the sphere in ``dimensions`` >= 2;
    cosine in [-1, 1]."""
    if dimensions < 2:
        raise ValueError(f"dimensions={dimensions}: at least 2 are needed")
    c = np.clip(np.asarray(cosine, dtype=np.float64), -1, 1)
    a = (dimensions - 1) / 2
    with np.errstate(divide="ignore", under="ignore"):
        tail = 0.5 * betainc(a, 0.5, np.maximum(1 - c * c, 0))
        plain = np.log(np.where(c >= 0, tail, 1 - tail))
        # With x = 1 - c^2, the integral of t^(a-1) (1-t)^(-1/2) up to x is below x^a (1 - x)^(-1/2)
        # / a: far out, this takes the place of a tail that underflows.
        log_integral = np.log(np.maximum(1 - c * c, 1e-300)) * a - math.log(a) - betaln(a, 0.5)
        far = log_integral - 0.5 * np.log(np.maximum(c * c, 1e-300)) + math.log(0.5)
    return np.where((c > 0) & (tail < 1e-250), np.minimum(far, SMALLEST_LOG_TAIL), plain)


def bound_from_cosines(
    cosines: np.ndarray, threshold: float, dimensions: int, *, delta: float, confidence: float
) -> float:
    """Lower bound on epsilon from cosines (n,) of independent games; threshold: fixed before they
    were seen."""
    values = np.asarray(cosines, dtype=np.float64)
    if values.ndim != 1 or not len(values) or np.isnan(values).any():
        raise ValueError(
            f"cosines {values.shape}: numbers (n,) without NaN are needed, at least one"
        )
    won = int((values >= threshold).sum())
    log_chance = float(log_chance_of_cosine(np.array(threshold), dimensions))
    return _bound_from_wins(won, len(values), log_chance, delta, confidence)


def bound_from_identifications(
    won: int, games: int, log_candidates: float, *, delta: float, confidence: float
) -> float:
    """Lower bound on epsilon from ``won`` of ``games``, each a name among e^log_candidates equally
    likely ones."""
    if not 0 <= won <= games or games < 1:
        raise ValueError(
            f"won={won}, games={games}: at most the games, and at least one of them, is needed"
        )
    return _bound_from_wins(won, games, -log_candidates, delta, confidence)


def _bound_from_wins(
    won: int, games: int, log_chance: float, delta: float, confidence: float
) -> float:
    share = lower_limit(won, games, 1 - confidence)
    if share <= delta:
        return 0.0
    return min(max(math.log(share - delta) - log_chance, 0.0), LARGEST_BOUND)


def best_cosine_threshold(cosines: np.ndarray, dimensions: int, delta: float) -> float:
    """The threshold that bounds most on these games, for use on others; at least a tenth of the
    games reach it."""
    ordered = np.sort(np.asarray(cosines, dtype=np.float64))
    n = len(ordered)
    ranks = np.unique(np.linspace(0, max(0, n - max(5, n // 10)), 60).astype(int))
    thresholds = ordered[ranks]
    share = lower_limit(n - ranks, n, 0.05)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_shares = np.log(np.maximum(share - delta, 1e-300))
        gains = log_shares - log_chance_of_cosine(thresholds, dimensions)
    return float(thresholds[int(np.argmax(gains))])

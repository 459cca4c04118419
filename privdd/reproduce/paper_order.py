"""Does the paper's order hold? Paired over seeds, row against row, and for a column as a whole.

Every row of a column is trained with the same seeds (the same partition and test records), so differences are taken
seed by seed. A statement about several pairs at once ("FedDM is ahead of all others", "the order is a > b > c") holds
at level p only if each pair does: its p is the largest of theirs (the intersection-union test, Berger 1982), which needs
no correction for their number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.05
HOLDS, MEAN, REVERSED, OPEN = "holds", "holds in the mean", "reversed", "reversed in the mean"


@dataclass(frozen=True)
class RowPair:
    """better, worse: rows as the paper orders them; gain: mean of better - worse here; p: one-sided, None for one seed."""

    better: str
    worse: str
    gain: float
    p: float | None

    @property
    def verdict(self) -> str:
        if self.p is not None and self.p <= LEVEL:
            return HOLDS
        if self.p is not None and 1 - self.p <= LEVEL:
            return REVERSED
        return MEAN if self.gain > 0 else OPEN


@dataclass(frozen=True)
class Whole:
    """A statement about several pairs. p: the largest of theirs, None where one has none."""

    pairs: tuple[RowPair, ...]

    @property
    def p(self) -> float | None:
        values = [pair.p for pair in self.pairs]
        return None if None in values or not values else max(v for v in values if v is not None)

    @property
    def verdict(self) -> str:
        kinds = {pair.verdict for pair in self.pairs}
        return next(kind for kind in (REVERSED, OPEN, MEAN, HOLDS) if kind in kinds) if kinds else ""


def p_value(better: Sequence[float], worse: Sequence[float]) -> float | None:
    """One-sided paired t-test (Student 1908): the chance of such a gain if there were none; None with one seed."""
    gains = np.asarray(better, dtype=float) - np.asarray(worse, dtype=float)
    if len(gains) < 2:
        return None
    spread = gains.std(ddof=1)
    if spread < 1e-12:  # every seed agrees to the last digit
        return 0.5 if abs(gains.mean()) < 1e-12 else float(gains.mean() < 0)
    return float(stats.t.sf(gains.mean() * math.sqrt(len(gains)) / spread, len(gains) - 1))


def pair(better: str, worse: str, ours: Mapping[str, Sequence[float]]) -> RowPair:
    """ours: row -> accuracy by seed, the same seeds for all rows."""
    gain = float(np.mean(ours[better]) - np.mean(ours[worse]))
    return RowPair(better, worse, gain, p_value(ours[better], ours[worse]))


def leads(printed: Mapping[str, float], ours: Mapping[str, Sequence[float]]) -> Whole:
    """Is the row that leads in the paper ahead of every other one?"""
    best = max(printed, key=lambda row: printed[row])
    return Whole(tuple(pair(best, row, ours) for row in printed if row != best))


def ordered(printed: Mapping[str, float], ours: Mapping[str, Sequence[float]]) -> Whole:
    """Is the whole order the paper's? Neighbours decide it; rows that the paper prints equal are not compared."""
    ranked = sorted(printed, key=lambda row: -printed[row])
    pairs = [pair(a, b, ours) for a, b in itertools.pairwise(ranked) if printed[a] > printed[b]]
    return Whole(tuple(pairs))


def kendall(printed: Mapping[str, float], ours: Mapping[str, Sequence[float]]) -> tuple[float, int, int]:
    """(tau-b of the printed and our mean accuracies (Kendall 1945), pairs in the paper's order, pairs compared)."""
    rows = list(printed)
    a, b = np.array([printed[r] for r in rows]), np.array([float(np.mean(ours[r])) for r in rows])
    signs = [
        np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])
        for i, j in itertools.combinations(range(len(rows)), 2)
        if a[i] != a[j]
    ]
    agree, tau = sum(1 for s in signs if s > 0), stats.kendalltau(a, b).statistic
    return (0.0 if math.isnan(tau) else float(tau)), agree, len(signs)

"""Does a sentence that puts rows in order hold here? Its pairs are compared seed by seed.

A sentence about several pairs holds at a level only if each pair does: its p is the largest of
theirs (the intersection-union test, Berger 1982), which needs no correction for their number. One
pair by itself, and one that refutes the sentence, is read with the correction of Holm (1979) over
the pairs of the sentence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.05
HOLDS = "holds"
HOLDS_IN_MEAN = "holds in the mean"
REVERSED = "reversed"
REVERSED_IN_MEAN = "reversed in the mean"
CANNOT_TELL = "cannot be decided at this scale"


@dataclass(frozen=True)
class RowPair:
    """better, worse: rows as the paper orders them; gain: mean of better - worse here; p:
    one-sided, None for one seed;
    limit: why the comparison says nothing at this scale, "" where it does."""

    better: str
    worse: str
    gain: float
    p: float | None
    limit: str = ""

    @property
    def reversed_p(self) -> float | None:
        """Of the opposite order."""
        if self.p is None:
            return None
        return 1 - self.p


@dataclass(frozen=True)
class OrderStatement:
    """A statement about several pairs, all of which it needs."""

    pairs: tuple[RowPair, ...]

    @property
    def p(self) -> float | None:
        """The largest of the pairs', None where one has none."""
        values = [pair.p for pair in self.pairs if pair.p is not None]
        if not values or len(values) < len(self.pairs):
            return None
        return max(values)

    @property
    def adjusted(self) -> list[float | None]:
        """The pairs' p, corrected for their number."""
        return adjust_holm([pair.p for pair in self.pairs])

    @property
    def pair_verdicts(self) -> list[str]:
        """Each pair by itself, corrected for their number."""
        against = adjust_holm([pair.reversed_p for pair in self.pairs])
        return list(map(_judge_pair, self.pairs, self.adjusted, against))

    @property
    def verdict(self) -> str:
        """One reversed pair refutes it, and every pair must hold; "" without pairs."""
        kinds = {*self.pair_verdicts}
        if not kinds:
            return ""
        if REVERSED in kinds:
            return REVERSED
        if CANNOT_TELL in kinds:
            return CANNOT_TELL
        if self.p is not None and self.p <= LEVEL:
            return HOLDS
        if all(pair.gain > 0 for pair in self.pairs):
            return HOLDS_IN_MEAN
        return REVERSED_IN_MEAN


def _judge_pair(pair: RowPair, p: float | None, against: float | None) -> str:
    if pair.limit:
        return CANNOT_TELL
    if p is not None and p <= LEVEL:
        return HOLDS
    if against is not None and against <= LEVEL:
        return REVERSED
    if pair.gain > 0:
        return HOLDS_IN_MEAN
    return REVERSED_IN_MEAN


def adjust_holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for their number: p_(k) -> max over j <= k of (m - j + 1) p_(j), at most 1
    (Holm 1979). None stays None, and counts among the m."""
    m = len(values)
    ranked = sorted((p, place) for place, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * m
    largest = 0.0
    for rank, (p, place) in enumerate(ranked):
        largest = max(largest, min(1.0, (m - rank) * p))
        adjusted[place] = largest
    return adjusted


def p_value(better: Sequence[float], worse: Sequence[float]) -> float | None:
    """One-sided paired t-test (Student 1908): the chance of such a gain if there were none,

        p = P(T_{n-1} >= sqrt(n) mean(g) / s),  s^2 = sum_i (g_i - mean(g))^2 / (n - 1),

    of the gains g_i of n seeds. Paired, as a seed fixes the random streams of both rows.
    None with one seed."""
    gains = np.asarray(better, dtype=float) - np.asarray(worse, dtype=float)
    if len(gains) < 2:
        return None
    spread = gains.std(ddof=1)
    if spread < 1e-12:  # every seed agrees to the last digit
        if abs(gains.mean()) < 1e-12:
            return 0.5
        return float(gains.mean() < 0)
    return float(stats.t.sf(gains.mean() * math.sqrt(len(gains)) / spread, len(gains) - 1))

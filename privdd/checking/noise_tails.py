"""A stage for noise that ends where the law that it looks like goes on: normals made of a few uniforms, normals cut off.

A release beyond the end of the noise tells the record for certain, and few releases are there. Every number of a release
with noise of the same size shows how that noise is distributed, so a few thousand releases have seen its tail many
thousand times: how rare a residual is beyond a threshold, and how rare beyond that threshold less the record's shift.
That the shift moves the tail, and does not only move the mean, is seen in the releases with the record themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import betaincinv

from privdd.checking.called import Refused
from privdd.checking.examining import Examining
from privdd.checking.learned import totals
from privdd.checking.neighbours import Neighbouring, pairs
from privdd.checking.sampled import Block, drawn
from privdd.checking.shift_law import NOT_REJECTED, law_of_calls
from privdd.checking.tail_law import quiet

FEW, MANY = 1500, 120_000  # releases a side: to see whether the tail is normal's or Laplace's, and to judge
FIRST, SHARE = 0.05, 0.45  # of what is left
SURE = 4.0  # numbers that a normal law has beyond the largest: its tail is missing
ERRORS = 5.0  # standard errors that a mean may be off by
SEEN = 4  # releases with the record beyond the threshold, at least
LIKE = 0.05  # relative difference of two noises of one size
SAME = 0.1  # correlation of two numbers, or of their squares, from which they may share their noise
GRID = np.linspace(0.5, 6.0, 276)  # thresholds, in deviations
NAME = "neighbours, end of the noise"
SAYS = "the noise ends, or falls off, where the record moves a release past it"
Sides = tuple[Block, Block]


@dataclass(frozen=True)
class Residuals:
    """pooled (k,): residuals of all numbers with noise of one size, in deviations; own (n,): of the number that the record
    moves, with the record, from its mean without; shift: of that number, at least."""

    pooled: np.ndarray
    own: np.ndarray
    shift: float


def residuals(present: Block, absent: Block) -> Residuals | None:
    """None where nothing is shifted, or the number that is shifted most has other noise than the rest."""
    a, b = totals(present), totals(absent)
    if a.shape[1] != b.shape[1] or not a.shape[1]:
        return None
    spread = np.sqrt((a.var(0) + b.var(0)) / 2)
    if not (spread > 0).all():
        return None
    gaps = (a.mean(0) - b.mean(0)) / spread
    at = int(np.argmax(np.abs(gaps)))
    size = np.maximum(a.std(0), b.std(0))
    like = np.abs(size / size[at] - 1) < LIKE
    like &= np.abs(_correlations((b - b.mean(0)) / spread) - np.eye(len(like))).max(0) < SAME
    like[at] = True
    sign, error = math.copysign(1.0, gaps[at]), ERRORS / math.sqrt(min(len(a), len(b)))
    own_z, own_y = (sign * (x[:, at] - x[:, at].mean()) / spread[at] for x in (b, a))
    pooled = np.concatenate([(sign * (x - x.mean(0)) / spread)[:, like].ravel() for x in (b, a)])
    if min(stats.ks_2samp(own_z, own_y).pvalue, stats.ks_2samp(own_z, pooled).pvalue) < NOT_REJECTED:
        return None
    return Residuals(pooled, sign * (a[:, at] - b[:, at].mean()) / spread[at], abs(gaps[at]) - 4 * error)


def _correlations(x: np.ndarray) -> np.ndarray:
    """The larger of the correlations of each two numbers and of their squares."""
    if x.shape[1] == 1:
        return np.ones((1, 1))
    return np.maximum(np.abs(np.corrcoef(x.T)), np.abs(np.corrcoef(np.square(x).T)))


def ends_early(pooled: np.ndarray) -> bool:
    """Whether a normal law would have shown several numbers beyond the largest."""
    return bool(2 * stats.norm.sf(np.abs(pooled).max(initial=0.0)) * len(pooled) > SURE)


def end_epsilon(trained: Residuals, fresh: Residuals, *, delta: float, confidence: float) -> float:
    """Lower bound on epsilon at a threshold that ``trained`` suggests; 0 where the shift is not seen to move the tail."""
    shift = min(trained.shift, fresh.shift)
    if shift <= 0:
        return 0.0
    error = 1 - confidence
    _, at = max((_bound(trained.pooled, t, shift, delta, 0.1), t) for t in GRID)
    moved, expected = int((fresh.own > at).sum()), float((fresh.pooled > at - shift).mean()) * len(fresh.own)
    if moved < SEEN or stats.poisson.cdf(moved, expected) < NOT_REJECTED:
        return 0.0
    return _bound(fresh.pooled, at, shift, delta, error)


def _bound(pooled: np.ndarray, at: float, shift: float, delta: float, error: float) -> float:
    """From Clopper-Pearson limits of both shares, half of the error each."""
    n, near, far = len(pooled), int((pooled > at - shift).sum()), int((pooled > at).sum())
    least = float(betaincinv(near, n - near + 1, error / 2)) if near else 0.0
    most = float(betaincinv(far + 1, n - far, 1 - error / 2)) if far < n else 1.0
    return max(0.0, math.log((least - delta) / most)) if least > delta else 0.0


@dataclass
class NoiseTails(Examining):
    """Bounds from the noise of all numbers together."""

    def tails(self) -> None:
        tried = pairs(self.mechanism.kind, self.stated.relation, self.tried)
        some = [one for one in tried if np.count_nonzero(one.axis) == 1 and quiet(one.absent, self.tried.nothing)]
        if not some:
            return
        try:
            self._of_tails(max(some, key=lambda one: len(one.axis)))
        except Refused:
            return

    def _of_tails(self, pair: Neighbouring) -> None:
        inputs = self.around(pair.present)
        count = self._affordable(inputs, FIRST, 2 * FEW) // 2
        few = self._both_sides(pair, max(count, 2))
        first = residuals(*few)
        if first is None or not (ends_early(first.pooled) or law_of_calls(*few) == "other"):
            return
        count = self._affordable(inputs, SHARE, 2 * MANY) // 2
        if count < FEW:
            self._left_out(NAME)
            return
        trained, fresh = (residuals(*self._both_sides(pair, n)) for n in (count // 3, count - count // 3))
        if trained is not None and fresh is not None:
            self._add_fault(NAME, end_epsilon(trained, fresh, **self._test()), "noise_law", SAYS, pair.says)

    def _both_sides(self, pair: Neighbouring, count: int) -> Sides:
        one, other = (
            drawn(self.mechanism, self.around(side), count, self.clock) for side in (pair.present, pair.absent)
        )
        return one, other

"""Noise of many numbers that looks alike from every side, whatever law its length has.

Shares of noise that went missing, a scale drawn anew for each call: over all calls such noise follows no law that is known
here. Where its direction is uniform, and tells nothing of its length, each release without the record stands for all its
rotations, so the chance of a rare event is the mean of a known function of the length: thousands of releases give it
where counting needs millions. Nothing is said of how the length is distributed, so sound noise of any length (density
exp(-epsilon |x|) too) is not accused. The event is that the record's normal log odds, for noise as large as the release
is apart from the record's direction, pass a threshold. How often it comes with the record is counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import betainc, betaincinv

from privdd.checking.learned import totals
from privdd.checking.sampled import Block
from privdd.checking.shift_law import NOT_REJECTED, POOL
from privdd.checking.tail_law import FURTHEST

FEWEST = 8  # numbers of a release: fewer tell nothing of their noise
LEAST = 1000  # transcripts a side
UNEVEN = 1.3  # the variance of the energy, over that of normal noise of one scale, above which lengths differ
ODDS = np.geomspace(0.25, 64, 33)  # thresholds
LENGTHS = np.geomspace(1e-2, 1e3, 800)  # in deviations of a number
TRUSTED = float(stats.norm.sf(FURTHEST))
Sides = tuple[Block, Block]


@dataclass(frozen=True)
class View:
    """Releases (n, d) in units of the noise, split by the record's direction: along it (n,), and the length of the rest (n,)."""

    numbers: np.ndarray
    along: np.ndarray
    rest: np.ndarray

    @property
    def length(self) -> np.ndarray:
        return np.hypot(self.along, self.rest)

    @property
    def uneven(self) -> bool:
        """Whether the noise is not of one size, by its energy apart from the record; ``shift_law`` is for noise of one."""
        energy = np.square(self.rest)
        return bool(energy.var() > UNEVEN * 2 / (self.numbers.shape[1] - 1) * energy.mean() ** 2)


@dataclass(frozen=True)
class NoiseFrame:
    """What training transcripts taught: centre and scale (d,) of each number, direction (d,) and shift of the record."""

    centre: np.ndarray
    scale: np.ndarray
    way: np.ndarray
    shift: float

    def view(self, block: Block) -> View:
        numbers = (totals(block) - self.centre) / self.scale
        along = numbers @ self.way
        return View(numbers, along, np.linalg.norm(numbers - np.outer(along, self.way), axis=1))


def noise_frame(present: Block, absent: Block, axis: np.ndarray) -> NoiseFrame | None:
    """None where releases are not as long as the record, are too short, or have numbers without noise."""
    a, b = totals(present), totals(absent)
    if len(axis) < FEWEST or {a.shape[1], b.shape[1]} != {len(axis)} or not b.std(0).all():
        return None
    centre, scale = b.mean(0), b.std(0)
    way = axis / scale / np.linalg.norm(axis / scale)
    shift = float(((a - b.mean(0)) / scale @ way).mean())
    return NoiseFrame(centre, scale, way * math.copysign(1.0, shift), abs(shift))


def symmetric_epsilon(seen: NoiseFrame, trained: Sides, fresh: Sides, *, delta: float, confidence: float) -> float:
    """Lower bound on epsilon; 0 where the noise is not the same from every side. The threshold was learned before."""
    if min(map(len, fresh)) < LEAST or any(totals(block).shape[1] != len(seen.way) for block in (*trained, *fresh)):
        return 0.0
    before = [seen.view(block) for block in trained]
    odds = max(ODDS, key=lambda one: _bound(seen, before[0], before[1], float(one), delta, 1 - confidence))
    present, absent = (seen.view(block) for block in fresh)
    if not alike(absent):
        return 0.0
    return _bound(seen, present, absent, float(odds), delta, 1 - confidence)


def alike(noise: View) -> bool:
    """Whether directions are uniform on the sphere, by their numbers and along the record, and tell nothing of the length."""
    d, length = noise.numbers.shape[1], noise.length
    law = stats.beta((d - 1) / 2, (d - 1) / 2, -1, 2)
    cosines = (noise.numbers / length[:, None])[: POOL // d + 1].ravel()
    along = noise.along / length
    p = [
        stats.kstest(cosines, law.cdf).pvalue,
        stats.kstest(along, law.cdf).pvalue,
        stats.spearmanr(np.square(along), length).pvalue,
    ]
    return bool(min(p) > NOT_REJECTED)


def _bound(seen: NoiseFrame, present: View, absent: View, odds: float, delta: float, error: float) -> float:
    """A quarter of the error each: Clopper-Pearson with the record; without it centre, scale along the record, and mean."""
    n, m, d, tail = len(present.along), len(absent.along), len(seen.way), float(stats.norm.isf(error / 4))
    won = int((present.along > seen.shift / 2 + odds * present.rest**2 / ((d - 1) * seen.shift)).sum())
    share = float(betaincinv(won, n - won + 1, error / 4)) if won else 0.0
    centre = float(absent.along.mean()) + tail * float(absent.along.std()) / math.sqrt(m)
    ratios = np.square((absent.along - absent.along.mean()) / absent.rest)
    squares = ratios * (d - 3)  # of mean 1 if as wide as the rest
    wide = math.sqrt(float(squares.mean()) + tail * float(squares.std()) / math.sqrt(m))
    if share <= delta or seen.shift / 2 <= centre:
        return 0.0
    chance = lambda length: _chance(length, odds, seen, (seen.shift / 2 - centre) / wide, wide)  # noqa: E731
    values, cost = chance(absent.length), math.log(8 / error)
    most = float(max(chance(LENGTHS).max(), values.max()))
    if most < TRUSTED:
        return 0.0
    highest = values.mean() + math.sqrt(2 * values.var(ddof=1) * cost / m) + 7 * most * cost / (3 * (m - 1))
    return max(0.0, math.log(share - delta) - math.log(highest))


def _chance(length: np.ndarray, odds: float, seen: NoiseFrame, half: float, wide: float) -> np.ndarray:
    """Of the event, for noise of this length in a uniform direction: its cosine is above a root of a quadratic."""
    bend = odds * np.square(length) / ((len(seen.way) - 1) * seen.shift * wide)
    root = 2 * (half + bend) / (length + np.sqrt(np.square(length) + 4 * bend * (half + bend)))
    return betainc((len(seen.way) - 1) / 2, (len(seen.way) - 1) / 2, np.clip((1 - root) / 2, 0.0, 1.0))

"""Bounds on epsilon for noise that looks alike from every side, whatever law its length has."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import betainc

from attacks.statistics import lower_limit
from privdd.blackbox.budgets import BoundLevel
from privdd.blackbox.law_recognition import NOT_REJECTED, POOL
from privdd.blackbox.rare_shift_bounds import FURTHEST
from privdd.blackbox.transcripts import Sides, Transcripts, transcript_totals

FEWEST = 8  # numbers of a release: fewer tell nothing of their noise
LEAST_SYMMETRIC_VALUES = 1000  # transcripts a side
# the variance of the energy, over that of normal noise of one scale, above which lengths differ
UNEVEN = 1.3
ODDS = np.geomspace(0.25, 64, 33)  # thresholds
LENGTHS = np.geomspace(1e-2, 1e3, 800)  # in deviations of a number
TRUSTED = float(stats.norm.sf(FURTHEST))


@dataclass(frozen=True)
class SplitReleases:
    """Releases in units of the noise, split by the record's direction.

    Attributes:
        numbers: (n, d) all numbers.
        along: (n,) along the direction.
        rest: (n,) length of the rest.
    """

    numbers: np.ndarray
    along: np.ndarray
    rest: np.ndarray

    @property
    def release_lengths(self) -> np.ndarray:
        """(n,)."""
        return np.hypot(self.along, self.rest)

    @property
    def is_uneven(self) -> bool:
        """Whether the noise is not of one size: the energy e = rest^2 of normal noise has Var e = 2
        (E e)^2 / (d - 1). Apart from the record, which adds to the energy along it."""
        energy = np.square(self.rest)
        d = self.numbers.shape[1]
        return bool(energy.var() > UNEVEN * 2 / (d - 1) * energy.mean() ** 2)


@dataclass(frozen=True)
class NoiseFrame:
    """What training transcripts taught.

    Attributes:
        centre: (d,) of each number without the record.
        scale: (d,) its deviation.
        direction: (d,) unit vector of the record, in units of the noise.
        shift: of the record along it, at least 0.
    """

    centre: np.ndarray
    scale: np.ndarray
    direction: np.ndarray
    shift: float

    def split_releases(self, block: Transcripts) -> SplitReleases:
        """Releases in this frame."""
        numbers = (transcript_totals(block) - self.centre) / self.scale
        along = numbers @ self.direction
        across = numbers - np.outer(along, self.direction)
        return SplitReleases(numbers, along, np.linalg.norm(across, axis=1))


def fit_noise_frame(
    present: Transcripts, absent: Transcripts, axis: np.ndarray
) -> NoiseFrame | None:
    """The frame in which noise without the record has centre 0 and deviation 1.

    Args:
        present: transcripts with the record.
        absent: transcripts without it.
        axis: (d,) direction of the record.

    Returns:
        None if releases are not as long as the record, are too short, or have numbers without
        noise.
    """
    a = transcript_totals(present)
    b = transcript_totals(absent)
    if len(axis) < FEWEST or {a.shape[1], b.shape[1]} != {len(axis)} or not b.std(0).all():
        return None
    centre = b.mean(0)
    scale = b.std(0)
    direction = axis / scale / np.linalg.norm(axis / scale)
    shift = float(((a - centre) / scale @ direction).mean())
    return NoiseFrame(centre, scale, direction * math.copysign(1.0, shift), abs(shift))


def symmetric_epsilon(frame: NoiseFrame, trained: Sides, fresh: Sides, level: BoundLevel) -> float:
    """Lower bound on epsilon for noise that looks alike from every side; 0 for other noise.

    epsilon >= ln((P(A | record) - delta) / P(A | no record)). Each release without the record
    stands for all its rotations, so P(A | no record) is the mean over releases of a known function
    of the length, E P(A | length). The event A: the record's normal log odds, for noise as large as
    the release is apart from the record's direction, pass a threshold that was learned before. P(A
    | record) is counted. Nothing is assumed of how the length is distributed, so sound noise of any
    length (density exp(-epsilon |x|) too) is not accused.

    Args:
        frame: learned on ``trained``.
        trained: transcripts that the threshold is learned from.
        fresh: transcripts that judge.
        level: delta and confidence.
    """
    sizes = {transcript_totals(block).shape[1] for block in (*trained, *fresh)}
    if min(map(len, fresh)) < LEAST_SYMMETRIC_VALUES or sizes != {len(frame.direction)}:
        return 0.0
    trained_present, trained_absent = (frame.split_releases(block) for block in trained)
    promises = [
        _bound_spherical(frame, trained_present, trained_absent, float(odds), level)
        for odds in ODDS
    ]
    odds = float(ODDS[int(np.argmax(promises))])
    present, absent = (frame.split_releases(block) for block in fresh)
    if not is_spherical(absent):
        return 0.0
    return _bound_spherical(frame, present, absent, odds, level)


def is_spherical(noise: SplitReleases) -> bool:
    """Whether directions are uniform on the sphere, by their numbers and along the record, and tell
    nothing of the length.

    A coordinate c of a uniform direction in d dimensions has (1 + c) / 2 ~ Beta((d - 1) / 2, (d -
    1) / 2): Kolmogorov and Smirnov's test of all coordinates, and of the one along the record by
    itself, where a fault would be; Spearman's rank correlation of c^2 and the length, as their
    dependence need not be linear. The smallest p-value decides.
    """
    d = noise.numbers.shape[1]
    length = noise.release_lengths
    law = stats.beta((d - 1) / 2, (d - 1) / 2, -1, 2)
    directions = noise.numbers / length[:, None]
    cosines = directions[: POOL // d + 1].ravel()
    along = noise.along / length
    p_values = (
        stats.kstest(cosines, law.cdf).pvalue,
        stats.kstest(along, law.cdf).pvalue,
        stats.spearmanr(np.square(along), length).pvalue,
    )
    return bool(min(p_values) > NOT_REJECTED)


def _bound_spherical(
    frame: NoiseFrame,
    present: SplitReleases,
    absent: SplitReleases,
    odds: float,
    level: BoundLevel,
) -> float:
    """ln((p_low - delta) / q_high), a quarter of the error for each of four limits.

    A = {along > s / 2 + odds rest^2 / ((d - 1) s)} for a shift of s. p_low: Clopper and Pearson's
    lower limit of P(A | record). q_high, of the mean of n chances V in [0, M]: mean V + sqrt(2 var
    V ln(8 / alpha) / n) + 7 M ln(8 / alpha) / (3 (n - 1)) (Maurer and Pontil 2009, theorem 4),
    which uses the variance, as V is near 0 for most lengths. Two normal limits: the centre and the
    scale of the noise along the record, which were only estimated.

    Args:
        frame: of the noise.
        present: releases with the record.
        absent: releases without it.
        odds: the threshold.
        level: delta and confidence.
    """
    m = len(absent.along)
    d = len(frame.direction)
    error = level.error
    tail = float(stats.norm.isf(error / 4))
    threshold = frame.shift / 2 + odds * present.rest**2 / ((d - 1) * frame.shift)
    hits = int((present.along > threshold).sum())
    share = lower_limit(hits, len(present.along), error / 4)
    mean = float(absent.along.mean())
    centre = mean + tail * float(absent.along.std()) / math.sqrt(m)
    ratios = np.square((absent.along - absent.along.mean()) / absent.rest)
    squares = ratios * (d - 3)  # of mean 1 if as wide as the rest
    widest_square = float(squares.mean()) + tail * float(squares.std()) / math.sqrt(m)
    wide = math.sqrt(widest_square)
    if share <= level.delta or frame.shift / 2 <= centre:
        return 0.0
    half = (frame.shift / 2 - centre) / wide
    values = event_chance(absent.release_lengths, odds, frame, half, wide)
    cost = math.log(8 / error)
    most = float(max(event_chance(LENGTHS, odds, frame, half, wide).max(), values.max()))
    if most < TRUSTED:
        return 0.0
    by_variance = math.sqrt(2 * values.var(ddof=1) * cost / m)
    by_range = 7 * most * cost / (3 * (m - 1))
    highest = values.mean() + by_variance + by_range
    return max(0.0, math.log(share - level.delta) - math.log(highest))


def event_chance(
    length: np.ndarray, odds: float, frame: NoiseFrame, half: float, wide: float
) -> np.ndarray:
    """P(A | length) for a uniform direction: its cosine c is above a root of a quadratic.

    A is l c > half + bend (1 - c^2) with bend = odds l^2 / ((d - 1) s wide), so c > 2 (half + bend)
    / (l + sqrt(l^2 + 4 bend (half + bend))) and P = I_{(1 - c) / 2}((d - 1) / 2, (d - 1) / 2).

    Args:
        length: (n,) of the noise.
        odds: the threshold.
        frame: of the noise.
        half: half of the shift, in units of the noise along the record.
        wide: scale of the noise along the record.
    """
    d = len(frame.direction)
    bend = odds * np.square(length) / ((d - 1) * frame.shift * wide)
    root = 2 * (half + bend) / (length + np.sqrt(np.square(length) + 4 * bend * (half + bend)))
    return betainc((d - 1) / 2, (d - 1) / 2, np.clip((1 - root) / 2, 0.0, 1.0))

"""Bounds for noise that ends before its law does (sums of few uniforms, normals cut off): the noise
of all numbers shows how rare a residual is beyond a threshold, and beyond that threshold less the
record's shift."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from scipy import stats

from attacks.statistics import lower_limit, upper_limit
from privdd.blackbox.budgets import BoundLevel
from privdd.blackbox.check_run import CheckRun
from privdd.blackbox.inputs import NeighbouringInputs, is_quiet
from privdd.blackbox.law_recognition import NOT_REJECTED, VALUES, law_of_calls
from privdd.blackbox.mechanism import InputRefused
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.transcripts import Transcripts, transcript_totals

# releases a side: to see the tail's law, and to judge
PILOT_RELEASES = 1500
RELEASES = 120_000
# of the calls that are left, for either
PILOT_SHARE = 0.05
SHARE = 0.45
MISSING_NUMBERS = 4.0  # numbers that a normal law has beyond the largest: its tail is missing
MEAN_ERRORS = 5.0  # standard errors that a mean may be off by
MIN_RELEASES = 4  # releases with the record beyond the threshold, at least
SIZE_TOLERANCE = 0.05  # relative difference of two noises of one size
# correlation of two numbers, or of their squares, from which they may share their noise
SHARED_NOISE_CORRELATION = 0.1
THRESHOLDS = np.linspace(0.5, 6.0, 276)  # in deviations
PILOT_ERROR = 0.1  # error probability of the bounds that thresholds are compared by
NAME = "neighbours, end of the noise"
FAULT = "the record moves a release past the end of the noise"


@dataclass(frozen=True)
class TailResiduals:
    """Residuals of releases, in deviations of the noise.

    Attributes:
        pooled: (k,), of all numbers with noise of one size.
        moved: (n,), of the number that the record moves, with the record, from its mean without.
        shift: of that number, a lower limit.
    """

    pooled: np.ndarray
    moved: np.ndarray
    shift: float


def tail_residuals(present: Transcripts, absent: Transcripts) -> TailResiduals | None:
    """Residuals of all numbers whose noise is of the size of that which the record moves most.

    Args:
        present: transcripts with the record.
        absent: transcripts without it.

    Returns:
        None if nothing is shifted, or the number that is shifted most has other noise than the
        rest.
    """
    a = transcript_totals(present)
    b = transcript_totals(absent)
    if a.shape[1] != b.shape[1] or not a.shape[1]:
        return None
    spread = np.sqrt((a.var(0) + b.var(0)) / 2)
    if not (spread > 0).all():
        return None
    gaps = (a.mean(0) - b.mean(0)) / spread
    index = int(np.argmax(np.abs(gaps)))
    is_alike = _numbers_alike(np.maximum(a.std(0), b.std(0)), (b - b.mean(0)) / spread, index)
    sign = math.copysign(1.0, gaps[index])
    own_absent, own_present = (
        sign * (side[:, index] - side[:, index].mean()) / spread[index] for side in (b, a)
    )
    pooled = np.concatenate(
        [(sign * (side - side.mean(0)) / spread)[:, is_alike].ravel() for side in (b, a)]
    )
    # Kolmogorov and Smirnov, sup |F_n - G_m|: both sides have one noise, and it is that of the
    # pooled numbers, whatever law it has
    with_record = stats.ks_2samp(own_absent, own_present).pvalue
    with_others = stats.ks_2samp(own_absent, pooled).pvalue
    if min(with_record, with_others) < NOT_REJECTED:
        return None
    error = MEAN_ERRORS / math.sqrt(min(len(a), len(b)))
    moved = sign * (a[:, index] - b[:, index].mean()) / spread[index]
    return TailResiduals(pooled, moved, abs(gaps[index]) - 4 * error)


def _numbers_alike(size: np.ndarray, residuals: np.ndarray, at: int) -> np.ndarray:
    """(m,) bool: numbers whose noise is as large as that of number ``at`` and is not shared."""
    correlations = [
        np.abs(np.corrcoef(values, rowvar=False)) for values in (residuals, np.square(residuals))
    ]
    shared = np.maximum(*correlations).reshape(len(size), -1)
    is_alike = np.abs(size / size[at] - 1) < SIZE_TOLERANCE
    is_alike &= np.abs(shared - np.eye(len(size))).max(0) < SHARED_NOISE_CORRELATION
    is_alike[at] = True
    return is_alike


def ends_early(pooled: np.ndarray) -> bool:
    """Whether a normal law would have shown several numbers beyond the largest: the expected count
    k P(|Z| > max |z_i|) of k numbers z_i is above ``MISSING_NUMBERS``."""
    largest = np.abs(pooled).max(initial=0.0)
    return bool(2 * stats.norm.sf(largest) * len(pooled) > MISSING_NUMBERS)


def noise_end_epsilon(trained: TailResiduals, fresh: TailResiduals, level: BoundLevel) -> float:
    """Lower bound on epsilon at a threshold t that ``trained`` suggests; 0 if the shift is not seen
    to move the tail.

    epsilon >= ln((P(Z > t - s) - delta) / P(Z > t)) for noise Z and a shift of at least s. Both
    shares are of the pooled noise, so many numbers a release show a tail that releases with the
    record alone would not. The bound trusts that the shift moves the tail: at least
    ``MIN_RELEASES`` releases with the record are beyond t, and not fewer than P(Z > t - s) lets
    expect (Poisson).

    Args:
        trained: residuals that choose the threshold.
        fresh: residuals that judge.
        level: delta and confidence of the bound.
    """
    shift = min(trained.shift, fresh.shift)
    if shift <= 0:
        return 0.0
    promises = [
        (_bound_noise_end(trained.pooled, threshold, shift, level.delta, PILOT_ERROR), threshold)
        for threshold in THRESHOLDS
    ]
    _, threshold = max(promises)
    beyond = int((fresh.moved > threshold).sum())
    expected = float((fresh.pooled > threshold - shift).mean()) * len(fresh.moved)
    if beyond < MIN_RELEASES or stats.poisson.cdf(beyond, expected) < NOT_REJECTED:
        return 0.0
    return _bound_noise_end(fresh.pooled, threshold, shift, level.delta, level.error)


def _bound_noise_end(
    pooled: np.ndarray, threshold: float, shift: float, delta: float, error: float
) -> float:
    """ln((P(Z > t - s) - delta) / P(Z > t)) from Clopper and Pearson's limits of both shares, half
    of the error each; 0 if the first is not above delta."""
    count = len(pooled)
    near = int((pooled > threshold - shift).sum())
    far = int((pooled > threshold).sum())
    least = lower_limit(near, count, error / 2)
    most = upper_limit(far, count, error / 2)
    if least <= delta:
        return 0.0
    return max(0.0, math.log((least - delta) / most))


def examine_noise_tails(run: CheckRun) -> None:
    """The longest pair on which the record is one number, and nothing else is in the data."""
    pairs = neighbouring_pairs(run.mechanism.kind, run.claim.relation, run.inputs)
    of_one_number = [
        pair
        for pair in pairs
        if np.count_nonzero(pair.axis) == 1 and is_quiet(pair.absent, run.inputs.nothing)
    ]
    if of_one_number:
        with suppress(InputRefused):
            _examine_pair(run, max(of_one_number, key=lambda pair: len(pair.axis)))


def _examine_pair(run: CheckRun, pair: NeighbouringInputs) -> None:
    # fewer numbers have no law; rounded up
    fewest = min(PILOT_RELEASES, -(-VALUES // (2 * len(pair.axis))))
    pilot = run.draw_affordable(pair, NAME, PILOT_SHARE, PILOT_RELEASES, fewest)
    if not pilot:
        return
    residuals = tail_residuals(*pilot[0])
    if residuals is None:
        return
    if not ends_early(residuals.pooled) and law_of_calls(*pilot[0]) != "other":
        return
    blocks = run.draw_affordable(pair, NAME, SHARE, RELEASES, PILOT_RELEASES, thirds=True)
    if not blocks:
        return
    trained, fresh = (tail_residuals(*sides) for sides in blocks)
    if trained is not None and fresh is not None:
        bound = noise_end_epsilon(trained, fresh, run.next_level())
        run.add_fault(NAME, bound, "noise_law", FAULT, pair.says)

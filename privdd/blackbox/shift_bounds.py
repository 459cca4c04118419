"""Bounds on epsilon from how far the record shifts a release, over noise of a known law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from scipy import stats

from attacks.tradeoff import gaussian_epsilon
from privdd.blackbox.budgets import BoundLevel
from privdd.blackbox.claims import TINY
from privdd.blackbox.law_recognition import (
    BY_NUMBER,
    ON_LATTICE,
    VALUES,
    distinct_numbers,
    fit_scale,
    follows_law,
    is_normal,
    lattice_step,
    law_of_calls,
    noise_law,
)
from privdd.blackbox.noise_metric import NoiseMetric, shift_directions
from privdd.blackbox.transcripts import PairSample, Sides, Transcripts, transcript_totals

LEAST_SHIFT_VALUES = 150  # transcripts a side
CARRIES = 0.1  # of the largest variance in a projection: numbers with less hardly shape its law
NO_NOISE = 1e-9  # of the shift: noise with a smaller deviation is rounding
MOVED_ERRORS = 3.0  # standard errors of a mean from which on a number counts as moved
WHOLE_STEPS = 1e-6  # of a step: what a shift on a lattice may be off by
# of a composition
LEVELS = 32  # different shifts that it tells apart
CELLS = 20_000  # of a privacy loss distribution
FINEST = 1e-4  # of its losses
FAR = 3.0  # widths of discrete Gaussian noise


@dataclass(frozen=True)
class ShiftBound:
    """The cost of a shift.

    Attributes:
        law: gaussian, laplace, the same on a lattice, or other (no epsilon then).
        mu: shift over noise, the best guess; mu_low: from below.
        epsilon: from ``mu_low``, a lower bound at the confidence that was asked for.
        about: from ``mu``, the best guess.
        transcripts: of both sides.
        exact: whether the shift was known and not estimated.
    """

    law: str = "other"
    mu: float = 0.0
    mu_low: float = 0.0
    epsilon: float = 0.0
    about: float = 0.0
    transcripts: int = 0
    exact: bool = False


def bound_shift(pair: PairSample, level: BoundLevel) -> ShiftBound:
    """The cost of the shift between two inputs, on fresh transcripts along a direction that was
    learned before.

    If residuals are normal, mu-GDP gives epsilon: delta = Phi(-epsilon / mu + mu / 2) - e^epsilon
    Phi(-epsilon / mu - mu / 2) with mu = |w . (E a - E b)| / sd(w . b) (Dong, Roth and Su 2022,
    corollary 2.13); that is tight for normal noise, where counting is limited by the logarithm of
    the number of transcripts. If each number's are Laplace, it is that of the Laplace mechanism.

    Args:
        pair: transcripts of neighbours.
        level: delta and confidence.

    Returns:
        The bound; one of 0 if there is no shift, no noise, or no law for it.
    """
    projection = directions_and_totals(pair, LEAST_SHIFT_VALUES)
    if projection is None:
        return ShiftBound()
    directions, present, absent = projection
    law = law_of_calls(*pair.fresh)
    if law == "laplace":
        return _bound_laplace_shift(pair.trained, present, absent, level)
    direction = max(directions, key=lambda w: _unbiased_shift(pair.trained, w))
    y = present @ direction
    z = absent @ direction
    gap = abs(float(y.mean() - z.mean()))
    spread = max(float(y.std(ddof=1)), float(z.std(ddof=1)))
    if spread <= NO_NOISE * gap or gap == 0:
        return ShiftBound()
    mu = gap / spread
    count = len(y) + len(z)
    passes = law == "gaussian" and is_normal(y) and is_normal(z)
    if not passes or not _has_normal_weights(pair, direction):
        return ShiftBound("other", mu, transcripts=count)
    low = mu_from_below(y, z, level.confidence)
    delta = max(level.delta, TINY)
    return ShiftBound(
        law="gaussian",
        mu=mu,
        mu_low=low,
        epsilon=gaussian_epsilon(low, delta),
        about=gaussian_epsilon(mu, delta),
        transcripts=count,
    )


def directions_and_totals(
    pair: PairSample, least: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray] | None:
    """Directions to look along, and the fresh transcripts to project on them.

    Args:
        pair: transcripts of neighbours.
        least: transcripts a side.

    Returns:
        (directions (d,), totals (n, d) with the record, totals (n, d) without it); None if shapes
        differ, or there are fewer transcripts.
    """
    directions = shift_directions(*pair.trained, pair.axis)
    present, absent = map(transcript_totals, pair.fresh)
    if not directions or min(len(present), len(absent)) < least:
        return None
    if not present.shape[1] == absent.shape[1] == len(directions[0]):
        return None
    return directions, present, absent


def _unbiased_shift(trained: Sides, direction: np.ndarray) -> float:
    """mu^2 - (k + 1)(1/n + 1/m): the squared shift on the training transcripts, less what a learned
    direction of k numbers finds in noise alone (the mean of Hotelling's T^2 over n m / (n + m))."""
    present, absent = (transcript_totals(block) @ direction for block in trained)
    spread = max(float(present.std()), float(absent.std()), 1e-300)
    mu = float(present.mean() - absent.mean()) / spread
    if np.count_nonzero(direction) <= 1:
        return mu * mu
    return mu * mu - (len(direction) + 1) * (1 / len(present) + 1 / len(absent))


def mu_from_below(y: np.ndarray, z: np.ndarray, confidence: float) -> float:
    """A lower limit of |mean difference| / std of normal samples.

    mu_low = (|mean y - mean z| - s_high sqrt(1/n + 1/m) z_{alpha / 2}) / s_high with s_high = s
    sqrt(f / chi2_{alpha / 4, f}): alpha / 2 for the difference, and as much for both deviations.
    Two limits rather than a noncentral t, as the sides may differ in their deviation.

    Args:
        y: (n,) projections with the record.
        z: (m,) projections without it.
        confidence: of the limit.
    """
    tail = (1 - confidence) / 2
    of_present = (float(y.std(ddof=1)), len(y) - 1)
    of_absent = (float(z.std(ddof=1)), len(z) - 1)
    spread, freedom = max(of_present, of_absent)
    highest = spread * math.sqrt(freedom / stats.chi2.ppf(tail / 2, freedom))
    error = highest * math.sqrt(1 / len(y) + 1 / len(z)) * stats.norm.isf(tail / 2)
    return max(0.0, (abs(float(y.mean() - z.mean())) - error) / highest)


def _has_normal_weights(pair: PairSample, direction: np.ndarray) -> bool:
    """Whether those numbers alone that weigh in a projection on a direction (m,) are normal: a
    count among normal numbers shows."""
    blocks = (*pair.trained, *pair.fresh)
    variances = np.sum([transcript_totals(block).var(0) for block in blocks], axis=0)
    weights = np.square(direction) * variances
    carries = weights >= CARRIES * weights.max()
    carried = [Transcripts(block.rows[:, :, carries], block.codes) for block in blocks]
    return law_of_calls(*carried) == "gaussian"


def _bound_laplace_shift(
    trained: Sides, present: np.ndarray, absent: np.ndarray, level: BoundLevel
) -> ShiftBound:
    """Epsilon from below of independent Laplace numbers, signs and places learned before.

    sum_i s_i / b_i is estimated by the sum of (mean a_i - mean b_i) / b_i with scales b_i at their
    upper limit b_i (1 + z_{alpha / 2k} / sqrt(n)), less z_{alpha / 2} sqrt(2 k (1/n + 1/m)), as a
    Laplace number has variance 2 b^2; at delta 0 that is epsilon. Each side is tested for the law
    by itself: skew that the record turns round is not seen on both together.

    Args:
        trained: transcripts that signs and places are learned from.
        present: (n, m) totals of fresh transcripts with the record.
        absent: the same without it.
        level: delta and confidence.
    """
    count = len(present) + len(absent)
    signs, places = _moved_places(trained)
    if not len(places):
        return ShiftBound("laplace", transcripts=count)
    sides = [(side - np.median(side, 0))[:, places] for side in (present, absent)]
    if not all(side.size >= VALUES / 2 and noise_law(side) == "laplace" for side in sides):
        return ShiftBound("other", transcripts=count)
    residuals = np.concatenate(sides)
    scale = np.abs(residuals).mean(0)
    gap = (present.mean(0) - absent.mean(0))[places] * signs[places]
    over_noise = gap / scale
    tail = stats.norm.isf(level.error / (2 * len(places)))
    highest_scale = scale * (1 + tail / math.sqrt(len(residuals)))
    variance = 2 * len(places) * (1 / len(present) + 1 / len(absent))
    error = stats.norm.isf(level.error / 2) * math.sqrt(variance)
    low = max(0.0, float((gap / highest_scale).sum()) - error)
    positive = np.maximum(over_noise, 0)
    shrunk = positive * low / max(float(positive.sum()), 1e-300)
    units = np.ones(len(over_noise))
    return ShiftBound(
        law="laplace",
        mu=float(np.linalg.norm(over_noise)) / math.sqrt(2),
        mu_low=low,
        epsilon=composed_epsilon("laplace", shrunk, units, 1.0, level.delta),
        about=composed_epsilon("laplace", over_noise, units, 1.0, level.delta),
        transcripts=count,
    )


def _moved_places(trained: Sides) -> tuple[np.ndarray, np.ndarray]:
    """((m,) signs of the shift, 0 if a number is not seen to move; places of those that are, each
    noise once)."""
    present, absent = map(transcript_totals, trained)
    metric = NoiseMetric.from_sides(present, absent)
    gap = present.mean(0) - absent.mean(0)
    error = metric.std * math.sqrt(1 / len(present) + 1 / len(absent))
    signs = np.where(np.abs(gap) > MOVED_ERRORS * error, np.sign(gap), 0.0)
    noise = np.concatenate([side - np.median(side, 0) for side in (present, absent)])
    places = distinct_numbers(noise, np.flatnonzero(signs), np.abs(gap) / error)
    return signs, places


def composed_epsilon(
    law: str, steps: np.ndarray, scale: np.ndarray, share: float, delta: float
) -> float:
    """Epsilon of independent numbers that are each shifted over noise of one law.

    Gaussian: mu-GDP with mu = |steps|_2. Others at delta 0: the sum of steps (basic composition,
    which is tight for Laplace noise at delta 0). Else the convolution of the numbers' privacy loss
    distributions, rounded down, so that the result stays a lower bound.

    Args:
        law: one of ``BY_NUMBER``.
        steps: (k,) shifts in units of the scale.
        scale: (k,) scales of the noise.
        share: of the steps that is shifted by, in [0, 1].
        delta: in [0, 1).

    Returns:
        Epsilon at ``delta``; of more than ``LEVELS`` different steps rounded down, which only
        lowers it.
    """
    scale = scale[steps > 0]
    steps = steps[steps > 0]
    total = float(steps.sum()) * share
    delta_above_zero = max(delta, TINY)
    if law == "gaussian" or total <= 0:
        return gaussian_epsilon(float(np.linalg.norm(steps)) * share, delta_above_zero)
    if delta == 0 and law != "discrete gaussian":
        return total
    if law == "discrete gaussian" and float(steps.max()) > FAR:
        # a composition cuts such noise off, and has nothing left of it at the other side; one step
        # of the lattice, of privacy loss shift / width^2, is more than it can differ from the
        # normal law
        mu = float(np.linalg.norm(steps)) * share
        one_step = float((steps / scale).max())
        return max(0.0, gaussian_epsilon(mu, delta_above_zero) - one_step)
    if law == "discrete gaussian":
        largest_loss = 10 * total + float((steps**2).sum())
    else:
        largest_loss = total
    options = {
        "pessimistic_estimate": False,
        "value_discretization_interval": max(FINEST, largest_loss / CELLS),
        "use_connect_dots": False,
    }
    if law == "laplace":
        scale = np.ones_like(steps)  # in units of the noise
        if len(np.unique(np.round(steps, 12))) > LEVELS:
            steps = np.floor(steps / steps.max() * LEVELS) / LEVELS * steps.max()
            scale = scale[steps > 0]
            steps = steps[steps > 0]
    losses = _loss_distributions(law, steps, scale, share, options)
    composed = reduce(lambda first, second: first.compose(second), losses)
    return float(composed.get_epsilon_for_delta(delta_above_zero))


def _loss_distributions(
    law: str, steps: np.ndarray, scale: np.ndarray, share: float, options: dict[str, Any]
) -> list[Any]:
    """Privacy loss distributions of the ``LEVELS`` kinds of numbers that cost most, composed with
    themselves."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    kinds = np.stack([np.round(steps * scale, 12), np.round(scale, 12)])
    (shifts, widths), counts = np.unique(kinds, axis=1, return_counts=True)
    most_costly = np.argsort(-shifts / widths * counts)[:LEVELS]
    losses = []
    for shift, width, count in zip(shifts[most_costly], widths[most_costly], counts[most_costly]):
        if law == "laplace":
            loss = pld.from_laplace_mechanism(width / (shift * share), **options)
        elif law == "discrete laplace":
            loss = pld.from_discrete_laplace_mechanism(share / width, round(shift), **options)
        else:
            loss = pld.from_discrete_gaussian_mechanism(width / share, round(shift), **options)
        losses.append(loss.self_compose(int(count)) if count > 1 else loss)
    return losses


def exact_shift_bound(pair: PairSample, level: BoundLevel) -> ShiftBound | None:
    """``bound_shift`` if the shift is known: the noise (Gaussian, Laplace, or these on a lattice)
    has an estimated scale, whose confidence only epsilon from below takes into account.

    Args:
        pair: transcripts of neighbours with their exact shift.
        level: delta and confidence.

    Returns:
        None without a known shift or law.
    """
    if pair.shift is None or not pair.shift.any() or min(map(len, pair.fresh)) < LEAST_SHIFT_VALUES:
        return None
    shapes = {block.rows.shape[1:] for block in (*pair.trained, *pair.fresh)}
    if shapes != {pair.shift.shape}:
        return None
    rows = [block.rows.reshape(len(block), -1) for block in pair.fresh]
    sides = [side - np.quantile(side, 0.5, axis=0, method="lower") for side in rows]
    noised = np.logical_and(*(side.any(0) for side in sides))
    shift = pair.shift.ravel()
    moved = shift != 0
    # numbers that stay tell the scale too, if their noise is of the same law
    for places in (noised, moved):
        bound = _bound_by_number(np.abs(shift), sides, np.flatnonzero(places | moved), level)
        if bound is not None:
            return bound
    return _bound_gaussian(pair, pair.shift.sum(0), level)


def _bound_gaussian(pair: PairSample, shift: np.ndarray, level: BoundLevel) -> ShiftBound | None:
    """The bound if numbers share noise: along the direction Sigma^-1 s of the noise's metric and
    the shift, it is normal on both sides.

    mu = |w . s| / sigma_w with w = Sigma^-1 s, the largest over all directions; sigma_w at its
    upper limit s_w sqrt(f / chi2_{alpha, f}), pooled over both sides with f = n + m - 2. No error
    is left for the shift, which is exact.

    Args:
        pair: transcripts of neighbours.
        shift: (m,) what the record adds to the totals.
        level: delta and confidence.
    """
    if law_of_calls(*pair.fresh) != "gaussian":
        return None
    metric = NoiseMetric.from_sides(*map(transcript_totals, pair.trained))
    direction = metric.whiten_vector(shift)
    if not np.isfinite(direction).all() or not direction.any():
        return None
    length = float(np.linalg.norm(direction))
    y, z = (transcript_totals(block) @ (direction / length) for block in pair.fresh)
    gap = abs(float(shift @ direction)) / length
    spread = max(float(y.std(ddof=1)), float(z.std(ddof=1)))
    if spread <= NO_NOISE * gap or not (is_normal(y) and is_normal(z)):
        return None
    freedom = len(y) + len(z) - 2
    squares = (len(y) - 1) * float(y.var(ddof=1)) + (len(z) - 1) * float(z.var(ddof=1))
    pooled = math.sqrt(squares / freedom)
    mu_low = gap / (pooled * math.sqrt(freedom / stats.chi2.ppf(level.error, freedom)))
    mu = gap / pooled
    delta = max(level.delta, TINY)
    return ShiftBound(
        law="gaussian",
        mu=mu,
        mu_low=mu_low,
        epsilon=gaussian_epsilon(mu_low, delta),
        about=gaussian_epsilon(mu, delta),
        transcripts=len(y) + len(z),
        exact=True,
    )


def _bound_by_number(
    shift: np.ndarray, sides: list[np.ndarray], places: np.ndarray, level: BoundLevel
) -> ShiftBound | None:
    """Numbers with independent noise of one law.

    Steps s_i / b_i shrunk by 1 - z_alpha r, r the relative standard error of the scale: one factor,
    as scales of one law err alike; if each number has a scale of its own, r times |steps|_2 /
    |steps|_1, the error of a sum of independent ones.

    Args:
        shift: (M,) size of what the record adds to each number.
        sides: (n, M) noise, with the record and without it.
        places: numbers to look at.
        level: delta and confidence.
    """
    chosen = distinct_numbers(np.concatenate(sides), places, shift)
    if np.count_nonzero(shift[chosen]) < np.count_nonzero(shift):
        return None
    parts = [side[:, chosen] for side in sides]
    law = _common_law(parts)
    if law is None:
        return None
    noise = np.concatenate(parts)
    unit = lattice_step(noise) if law in ON_LATTICE else 1.0
    in_units = shift[chosen] / unit
    if law in ON_LATTICE and np.abs(in_units - np.rint(in_units)).max() > WHOLE_STEPS:
        return None
    scale, error = fit_scale(law, noise / unit)
    steps = in_units / scale
    if np.ptp(scale) == 0 or law == "gaussian":
        averaging = 1.0
    else:
        averaging = float(np.linalg.norm(steps) / steps.sum())
    share = max(0.0, 1 - float(stats.norm.isf(level.error)) * error * averaging)
    length = float(np.linalg.norm(steps))
    mu = length / math.sqrt(2.0) if law == "laplace" else length
    return ShiftBound(
        law=law,
        mu=mu,
        mu_low=mu * share,
        epsilon=composed_epsilon(law, steps, scale, share, level.delta),
        about=composed_epsilon(law, steps, scale, 1.0, level.delta),
        transcripts=len(noise),
        exact=True,
    )


def _common_law(parts: list[np.ndarray]) -> str | None:
    """The first law that the noise of both sides follows."""
    for law in BY_NUMBER:
        if all(follows_law(law, part) for part in parts):
            return law
    return None

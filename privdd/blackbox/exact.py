"""The exact epsilon of noise whose law was tested, for a shift that is known: what counting cannot see."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from attacks.epsilon import gaussian_epsilon
from privdd.blackbox.claim import TINY
from privdd.blackbox.distinguishers import NoiseMetric
from privdd.blackbox.noise_laws import (
    LEAST_SHIFT_VALUES,
    NOT_REJECTED,
    POOL,
    VALUES,
    ShiftBound,
    composed_epsilon,
    distinct_numbers,
    is_normal,
    law_of_calls,
    noise_law,
)
from privdd.blackbox.transcripts import BoundLevel, PairSample, Transcripts, transcript_totals

SAME_VALUE = 1e-9  # of the largest: two values that are one, but for rounding
ALIKE_ERRORS = 5.0  # standard errors that scales of one noise differ by at most
ON_LATTICE = ("discrete laplace", "discrete gaussian")
BY_NUMBER = ("gaussian", "laplace", *ON_LATTICE)


def exact_shift_bound(pair: PairSample, level: BoundLevel) -> ShiftBound | None:
    """``bound_shift`` where the shift needs no estimate; None where it is not known or zero, or the noise is of no known law.

    Laws: Gaussian, Laplace, and both on a lattice. The scale is estimated, so epsilon from below takes its confidence into
    account, and ``about`` does not.
    """
    if pair.shift is None or not pair.shift.any() or min(map(len, pair.fresh)) < LEAST_SHIFT_VALUES:
        return None
    width = {block.rows.shape[1:] for block in (*pair.trained, *pair.fresh)}
    if width != {pair.shift.shape}:
        return None
    rows = [block.rows.reshape(len(block), -1) for block in pair.fresh]
    sides = [side - np.quantile(side, 0.5, axis=0, method="lower") for side in rows]
    noised, moved = np.logical_and(*(side.any(0) for side in sides)), pair.shift.ravel() != 0
    for places in (
        noised,
        moved,
    ):  # numbers that stay where they are tell the scale too, if their noise is of the same law
        found = _bound_by_number(np.abs(pair.shift.ravel()), sides, np.flatnonzero(places | moved), level)
        if found is not None:
            return found
    return _bound_gaussian(pair, pair.shift.sum(0), level)


def _bound_gaussian(pair: PairSample, shift: np.ndarray, level: BoundLevel) -> ShiftBound | None:
    """Of numbers that share noise: along the direction that its metric and the shift give, noise is normal on both sides."""
    if law_of_calls(*pair.fresh) != "gaussian":
        return None
    way = NoiseMetric.from_sides(*map(transcript_totals, pair.trained)).whiten_vector(shift)
    if not np.isfinite(way).all() or not way.any():
        return None
    y, z = (transcript_totals(block) @ (way / np.linalg.norm(way)) for block in pair.fresh)
    gap, spread = abs(float(shift @ way)) / float(np.linalg.norm(way)), max(float(y.std(ddof=1)), float(z.std(ddof=1)))
    if spread <= 1e-9 * gap or not (is_normal(y) and is_normal(z)):
        return None
    freedom = len(y) + len(z) - 2
    pooled = math.sqrt(((len(y) - 1) * float(y.var(ddof=1)) + (len(z) - 1) * float(z.var(ddof=1))) / freedom)
    low = gap / (pooled * math.sqrt(freedom / stats.chi2.ppf(level.error, freedom)))
    at = max(level.delta, TINY)
    n = len(y) + len(z)
    return ShiftBound(
        "gaussian", gap / pooled, low, gaussian_epsilon(low, at), gaussian_epsilon(gap / pooled, at), n, True
    )


def _bound_by_number(
    shift: np.ndarray, sides: list[np.ndarray], places: np.ndarray, level: BoundLevel
) -> ShiftBound | None:
    """Numbers at ``places`` with independent noise of one law, each shifted by ``shift`` (M,). sides (n, M): noise of both."""
    kept = distinct_numbers(np.concatenate(sides), places, shift)
    if np.count_nonzero(shift[kept]) < np.count_nonzero(shift):
        return None
    parts = [side[:, kept] for side in sides]
    law = next((law for law in BY_NUMBER if all(follows_law(law, part) for part in parts)), None)
    if law is None:
        return None
    noise = np.concatenate(parts)
    unit = lattice_step(noise) if law in ON_LATTICE else 1.0
    if law in ON_LATTICE and np.abs(shift[kept] / unit - np.rint(shift[kept] / unit)).max() > 1e-6:
        return None
    scale, error = fit_scale(law, noise / unit)
    steps = shift[kept] / unit / scale
    spread = 1.0 if np.ptp(scale) == 0 or law == "gaussian" else float(np.linalg.norm(steps) / steps.sum())
    share = max(0.0, 1 - float(stats.norm.isf(level.error)) * error * spread)
    low, about = (composed_epsilon(law, steps, scale, one, level.delta) for one in (share, 1.0))
    mu = float(np.linalg.norm(steps)) / (math.sqrt(2.0) if law == "laplace" else 1.0)
    return ShiftBound(law, mu, mu * share, low, about, len(noise), True)


def follows_law(law: str, noise: np.ndarray, pool: int = POOL) -> bool:
    """Whether noise (n, k), about its middle, is not rejected as of this law."""
    if noise.size < VALUES / 2:
        return False
    if law not in ON_LATTICE:
        return noise_law(noise, pool) == law
    step = lattice_step(noise)
    if step == 0:
        return False
    whole = np.rint(noise.ravel() / step).astype(int)[:pool]
    scale = float(fit_scale(law, noise / step)[0][0])
    k = np.arange(-(np.abs(whole).max() + 1), np.abs(whole).max() + 2)
    weight = np.exp(-np.abs(k) / scale if law == "discrete laplace" else -(k**2) / (2 * scale**2))
    expected = weight / weight.sum() * len(whole)
    seen = np.bincount(whole - k[0], minlength=len(k))
    common = expected >= 10
    if common.sum() < 2:
        return False
    table = [np.append(one[common], one[~common].sum()) for one in (seen, expected)]
    table = [one if table[1][-1] >= 1 else one[:-1] for one in table]
    freedom = len(table[1]) - 2  # the scale was fitted
    return freedom < 1 or bool(stats.chi2.sf(((table[0] - table[1]) ** 2 / table[1]).sum(), freedom) > NOT_REJECTED)


def has_law(law: str, block: Transcripts, pool: int) -> bool:
    """Whether the noise of transcripts of one input is not rejected as of this law, among at most ``pool`` numbers."""
    if law == "gaussian" or (law == "laplace" and block.rows.shape[1] == 1):
        return law_of_calls(block, pool=pool) == law
    rows = block.rows.reshape(len(block), -1)
    noise = rows - np.quantile(rows, 0.5, axis=0, method="lower")
    return follows_law(law, noise[:, noise.any(0)], pool)


def lattice_step(noise: np.ndarray) -> float:
    """The step of the lattice on which noise (n, k) lies; 0 for continuous noise."""
    values = np.unique(np.asarray(noise[:POOL], float))
    if len(values) < 2 or len(values) > 0.1 * noise[:POOL].size:
        return 0.0
    steps = np.diff(values)
    step = float(
        steps[steps > SAME_VALUE * np.abs(values).max()].min(initial=np.inf)
    )  # 0.3 has many neighbours in floats
    if not np.isfinite(step):
        return 0.0
    return step if bool((np.abs(noise / step - np.rint(noise / step)) < 1e-6).all()) else 0.0


def fit_scale(law: str, noise: np.ndarray) -> tuple[np.ndarray, float]:
    """(k,) scales of noise (n, k) and the relative standard error of each; one scale for all where they do not differ.

    Gaussian: deviation; Laplace: mean size. Of whole numbers with chances in the ratio exp(-|i|/s) or exp(-i^2/(2 s^2)): s.
    """
    size = np.abs(noise)
    mean = float(size.mean())
    if law not in ON_LATTICE:
        scale = noise.std(0) if law == "gaussian" else size.mean(0)
        error = (math.sqrt(0.5) if law == "gaussian" else 1.0) / math.sqrt(len(noise))
        mean = float(scale.mean())
        alike = bool((np.abs(scale / mean - 1) < ALIKE_ERRORS * error).all())
        return (np.full(len(scale), mean), error / math.sqrt(len(scale))) if alike else (scale, error)
    if law == "discrete gaussian":
        square = np.square(noise)
        error = float(square.std() / square.mean()) / 2 / math.sqrt(noise.size)
        return np.full(noise.shape[1], math.sqrt(float(square.mean()))), error
    q = (math.sqrt(1 + mean**2) - 1) / mean  # of a mean size 2 q / (1 - q^2)
    return np.full(noise.shape[1], -1 / math.log(q)), float(size.std()) / mean / math.sqrt(noise.size)

"""Which law the noise of a release has, by tests that it passes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from privdd.blackbox.transcripts import Transcripts, transcript_totals

NOT_REJECTED = 1e-4  # p-value above which a law is taken for the noise's
POOL = 40_000  # numbers that a test looks at, at most
VALUES = 4000  # numbers from which a law is told: among fewer, logistic noise passes for normal
FEWEST_NORMAL = 50  # values that a test of normality needs
DISTINCT = 1000  # values that are looked through for repeats
SHARE_DISTINCT = 0.9  # of those, at least, for continuous noise
NOISED = 1e-9  # of the largest deviation: numbers with less have no noise
# correlation from which two numbers hold the same noise, however few transcripts there are
ALIKE = 0.9
SAME_VALUE = 1e-9  # of the largest: two values that are one, but for rounding
SHARE_OF_VALUES = 0.1  # different values, of all, from which noise is continuous
OFF_LATTICE = 1e-6  # steps that a number on a lattice may be off by
ALIKE_ERRORS = 5.0  # standard errors that scales of one noise differ by at most
LEAST_EXPECTED = 10  # values in a cell of the chi-squared test
ON_LATTICE = ("discrete laplace", "discrete gaussian")
BY_NUMBER = ("gaussian", "laplace", *ON_LATTICE)


def law_of_calls(*sides: Transcripts, pool: int = POOL) -> str:
    """The law of the sums over the calls of a transcript.

    Args:
        *sides: transcripts, each of one input.
        pool: numbers that are looked at, at most.

    Returns:
        "gaussian", "laplace" or "other"; "other" below ``VALUES`` numbers, and gaussian only if
        each call is, as a sum of many is nearly normal in its middle and not in its tails.
    """
    calls = [block.rows.reshape(len(block), -1) for block in sides]
    if calls[0].shape[1] != calls[-1].shape[1]:
        return "other"
    residuals = _about_means(calls)
    if _standardise(residuals).size < VALUES:
        return "other"
    if sides[0].rows.shape[1] == 1:
        return noise_law(residuals, pool)
    law = noise_law(_about_means([transcript_totals(block) for block in sides]), pool)
    if law == "gaussian" and noise_law(residuals, pool) != "gaussian":
        return "other"
    return law


def _about_means(sides: Sequence[np.ndarray]) -> np.ndarray:
    """Residuals of all sides (n, m), each about its own mean."""
    return np.concatenate([side - side.mean(0) for side in sides])


def _standardise(residuals: np.ndarray) -> np.ndarray:
    """Residuals (n, m) of the numbers that are noised at all (n, k), in standard deviations."""
    std = residuals.std(0)
    noised = std > NOISED * max(float(std.max(initial=0.0)), 1e-300)
    return np.asarray(residuals[:, noised] / std[noised])


def noise_law(residuals: np.ndarray, pool: int = POOL) -> str:
    """The law of residuals, pooled over numbers that are noised at all.

    Kolmogorov and Smirnov's distance sup |F_n(x) - F(x)| to Laplace's law of the numbers over their
    mean size; for normality see ``is_normal``. By distance, as it needs no cells; the scale is
    fitted, which makes the test accept a little more often than its level.

    Args:
        residuals: (n, m), about their means.
        pool: numbers that are looked at, at most.

    Returns:
        "gaussian", "laplace" or "other".
    """
    values = _standardise(residuals)
    if not values.size:
        return "other"
    if is_normal(_thin(values, pool)):
        return "gaussian"
    scaled = _thin(values / np.abs(values).mean(0), pool)
    if stats.kstest(scaled, "laplace").pvalue > NOT_REJECTED:
        return "laplace"
    return "other"


def _thin(values: np.ndarray, pool: int) -> np.ndarray:
    """About ``pool`` of the values (n, k), evenly chosen, number by number."""
    flat = values.T.reshape(-1)
    return np.asarray(flat[:: max(1, len(flat) // pool)])


def is_normal(values: np.ndarray) -> bool:
    """Whether values pass two tests of normality and do not repeat.

    The smaller p-value of K^2 = Z(skewness)^2 + Z(kurtosis)^2 (D'Agostino and Pearson 1973), which
    sees heavy and light tails, and of Kolmogorov and Smirnov's sup |F_n(x) - Phi(x)|, which sees
    what has normal moments.

    Args:
        values: (n,); fewer than 50 never pass.
    """
    spread = float(values.std())
    if len(values) < FEWEST_NORMAL or spread == 0:
        return False
    distinct = len(np.unique(values[:DISTINCT]))
    if distinct < SHARE_DISTINCT * min(len(values), DISTINCT):
        return False
    centred = (values - values.mean()) / spread
    by_moments = float(stats.normaltest(centred).pvalue)
    by_distance = float(stats.kstest(centred, "norm").pvalue)
    return min(by_moments, by_distance) > NOT_REJECTED


def has_law(law: str, block: Transcripts, pool: int) -> bool:
    """Whether the noise of transcripts of one input is not rejected as of a law.

    Args:
        law: one of ``BY_NUMBER``.
        block: the transcripts.
        pool: numbers that are looked at, at most.
    """
    if law == "gaussian" or (law == "laplace" and block.rows.shape[1] == 1):
        return law_of_calls(block, pool=pool) == law
    rows = block.rows.reshape(len(block), -1)
    noise = rows - np.quantile(rows, 0.5, axis=0, method="lower")
    return follows_law(law, noise[:, noise.any(0)], pool)


def follows_law(law: str, noise: np.ndarray, pool: int = POOL) -> bool:
    """Whether noise is not rejected as of a law.

    On a lattice Pearson's sum of (n_k - E n_k)^2 / E n_k over the cells k with E n_k >= 10 and one
    for the rest, chi-squared with one degree less for the fitted scale: distances of distribution
    functions are for continuous laws.

    Args:
        law: one of ``BY_NUMBER``.
        noise: (n, k), about its middle.
        pool: numbers that are looked at, at most.
    """
    if noise.size < VALUES / 2:
        return False
    if law not in ON_LATTICE:
        return noise_law(noise, pool) == law
    step = lattice_step(noise)
    if step == 0:
        return False
    multiples = np.rint(noise.ravel() / step).astype(int)[:pool]
    scales, _ = fit_scale(law, noise / step)
    scale = float(scales[0])
    furthest = np.abs(multiples).max()
    k = np.arange(-(furthest + 1), furthest + 2)
    if law == "discrete laplace":
        weight = np.exp(-np.abs(k) / scale)
    else:
        weight = np.exp(-(k**2) / (2 * scale**2))
    expected = weight / weight.sum() * len(multiples)
    counts = np.bincount(multiples - k[0], minlength=len(k))
    return _passes_chi_squared(counts, expected)


def _passes_chi_squared(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Pearson's test of counts (k,) against their expectation (k,), with one fitted parameter."""
    common = expected >= LEAST_EXPECTED
    if common.sum() < 2:
        return False
    cells = np.append(counts[common], counts[~common].sum())
    expected_cells = np.append(expected[common], expected[~common].sum())
    if expected_cells[-1] < 1:
        cells = cells[:-1]
        expected_cells = expected_cells[:-1]
    freedom = len(expected_cells) - 2
    if freedom < 1:
        return True
    distance = ((cells - expected_cells) ** 2 / expected_cells).sum()
    return bool(stats.chi2.sf(distance, freedom) > NOT_REJECTED)


def lattice_step(noise: np.ndarray) -> float:
    """The step of the lattice on which noise (n, k) lies; 0 for continuous noise."""
    values = np.unique(np.asarray(noise[:POOL], float))
    if len(values) < 2 or len(values) > SHARE_OF_VALUES * noise[:POOL].size:
        return 0.0
    steps = np.diff(values)
    # two floats for one value, as of 0.3, are no step
    is_step = steps > SAME_VALUE * np.abs(values).max()
    step = float(steps[is_step].min(initial=np.inf))
    if not np.isfinite(step):
        return 0.0
    off = np.abs(noise / step - np.rint(noise / step))
    return step if bool((off < OFF_LATTICE).all()) else 0.0


def fit_scale(law: str, noise: np.ndarray) -> tuple[np.ndarray, float]:
    """Scales of noise, and their relative standard error; one for all if they do not differ.

    Gaussian: the deviation sigma, relative error sqrt(1 / (2 n)). Laplace: the mean size b = E|x|,
    the estimate of greatest likelihood, relative error 1 / sqrt(n). Of whole numbers: s of chances
    as exp(-i^2 / (2 s^2)), by s^2 = E i^2, and of exp(-|i| / s), by the mean size 2 q / (1 - q^2)
    with q = exp(-1 / s), which gives q = sqrt(1 + 1 / mean^2) - 1 / mean = exp(-asinh(1 / mean)).

    Args:
        law: one of ``BY_NUMBER``.
        noise: (n, k), about its middle.

    Returns:
        ((k,) scales, their relative standard error).
    """
    if law not in ON_LATTICE:
        return _fit_continuous_scale(law, noise)
    numbers = noise.shape[1]
    if law == "discrete gaussian":
        square = np.square(noise)
        error = float(square.std() / square.mean()) / 2 / math.sqrt(noise.size)
        return np.full(numbers, math.sqrt(float(square.mean()))), error
    size = np.abs(noise)
    mean = float(size.mean())
    error = float(size.std()) / mean / math.sqrt(noise.size)
    return np.full(numbers, 1 / math.asinh(1 / mean)), error


def _fit_continuous_scale(law: str, noise: np.ndarray) -> tuple[np.ndarray, float]:
    if law == "gaussian":
        scale = noise.std(0)
        error = math.sqrt(0.5) / math.sqrt(len(noise))
    else:
        scale = np.abs(noise).mean(0)
        error = 1.0 / math.sqrt(len(noise))
    mean = float(scale.mean())
    if (np.abs(scale / mean - 1) < ALIKE_ERRORS * error).all():
        return np.full(len(scale), mean), error / math.sqrt(len(scale))
    return scale, error


def distinct_numbers(residuals: np.ndarray, places: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Numbers whose noise is not that of one before them, heaviest first: what is released twice
    counts once.

    Two numbers hold the same noise if the correlation of them, or of their sizes, is above z_{1 - p
    / k^2} / sqrt(n), the normal limit of an empirical correlation of independent numbers,
    Bonferroni over k^2 of them. Sizes too, as noise may be shared with a random sign.

    Args:
        residuals: (n, m) noise of all numbers.
        places: (k,) numbers to choose from.
        weight: (m,) by which they are ordered.

    Returns:
        The chosen places, in ascending order.
    """
    ordered = places[np.argsort(-weight[places], kind="stable")]
    if len(ordered) < 2:
        return ordered
    noise = residuals[:, ordered]
    with np.errstate(invalid="ignore"):
        correlation = np.abs(np.corrcoef(noise, rowvar=False))
        of_sizes = np.abs(np.corrcoef(np.abs(noise), rowvar=False))
    tail = float(stats.norm.isf(NOT_REJECTED / len(ordered) ** 2))
    limit = min(ALIKE, tail / math.sqrt(len(residuals)))
    is_same = np.nan_to_num(np.maximum(correlation, of_sizes)) > limit
    chosen: list[int] = []
    for index in range(len(ordered)):
        if not is_same[index, chosen].any():
            chosen.append(index)
    return np.sort(ordered[chosen])

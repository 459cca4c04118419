"""Bounds that trust the law of the noise: Gaussian and Laplace shifts, rare shifts, sampled
records, spherical noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy import stats
from scipy.special import betainc, log_ndtr, ndtr

from attacks.epsilon import gaussian_epsilon
from attacks.statistics import lower_limit
from privdd.blackbox.distinguishers import NoiseMetric, shift_directions
from privdd.blackbox.mechanism import (
    TINY,
    BoundLevel,
    PairSample,
    Sides,
    Transcripts,
    transcript_totals,
)

NOT_REJECTED = 1e-4  # p-value above which a law is taken for the noise's
POOL = 40_000
LEAST_SHIFT_VALUES = 150  # transcripts a side
VALUES = 4000  # numbers from which a law is told: among fewer, logistic noise passes for normal
ALIKE = (
    0.9  # correlation from which two numbers hold the same noise, however few transcripts there are
)
CARRIES = 0.1  # of the largest variance in a projection: numbers with less hardly shape its law


@dataclass(frozen=True)
class ShiftBound:
    """law: gaussian, laplace, ... or other (no epsilon then); mu, mu_low: shift over noise, best
    guess and from below;
    epsilon, about: from both; exact: whether the shift was no estimate."""

    law: str
    mu: float = 0.0
    mu_low: float = 0.0
    epsilon: float = 0.0
    about: float = 0.0
    transcripts: int = 0
    exact: bool = False


NOTHING = ShiftBound("other")


def bound_shift(pair: PairSample, level: BoundLevel) -> ShiftBound:
    """The cost of the shift between two inputs. NOTHING where there is no shift, no noise, or no
    law for it. Fresh transcripts are projected on a direction learned beforehand. Where residuals
    are normal, mu-GDP gives epsilon (Dong, Roth and Su 2022); where each number's are Laplace, it
    is that of the Laplace mechanism with the shift seen."""
    found = _directions_and_totals(pair, LEAST_SHIFT_VALUES)
    if found is None:
        return NOTHING
    ways, a, b = found
    law = law_of_calls(*pair.fresh)
    if law == "laplace":
        return _bound_laplace_shift(pair.trained, a, b, level)
    w = max(ways, key=lambda w: _unbiased_shift(pair.trained, w))
    y = a @ w
    z = b @ w
    gap = abs(float(y.mean() - z.mean()))
    spread = max(float(y.std(ddof=1)), float(z.std(ddof=1)))
    if spread <= 1e-9 * gap or gap == 0:
        return NOTHING
    mu = gap / spread
    passes = law == "gaussian" and is_normal(y) and is_normal(z)
    if (
        not passes
        or law_of_calls(*_keep_weighted_numbers((*pair.trained, *pair.fresh), w)) != "gaussian"
    ):
        return ShiftBound("other", mu, transcripts=len(y) + len(z))
    low = mu_from_below(y, z, level.confidence)
    at = max(level.delta, 1e-12)
    return ShiftBound(
        "gaussian", mu, low, gaussian_epsilon(low, at), gaussian_epsilon(mu, at), len(y) + len(z)
    )


def _unbiased_shift(trained: Sides, w: np.ndarray) -> float:
    """Squared shift on the training transcripts, less what a learned direction finds in noise
    alone."""
    a, b = (transcript_totals(block) @ w for block in trained)
    mu = float(a.mean() - b.mean()) / max(float(a.std()), float(b.std()), 1e-300)
    return mu * mu - (len(w) + 1) * (1 / len(a) + 1 / len(b)) * (np.count_nonzero(w) > 1)


def mu_from_below(y: np.ndarray, z: np.ndarray, confidence: float) -> float:
    """A lower limit of |mean difference| / std of normal samples: the difference takes half of the
    error probability."""
    tail = (1 - confidence) / 2
    spread, freedom = max((float(y.std(ddof=1)), len(y) - 1), (float(z.std(ddof=1)), len(z) - 1))
    highest = spread * math.sqrt(freedom / stats.chi2.ppf(tail / 2, freedom))  # of either sample
    error = highest * math.sqrt(1 / len(y) + 1 / len(z)) * stats.norm.isf(tail / 2)
    return max(0.0, (abs(float(y.mean() - z.mean())) - error) / highest)


def _keep_weighted_numbers(sides: tuple[Transcripts, ...], w: np.ndarray) -> list[Transcripts]:
    """The same transcripts with those numbers alone that weigh in a projection on w (m,): a count
    among normal numbers shows."""
    variance = np.square(w) * np.sum([transcript_totals(block).var(0) for block in sides], axis=0)
    kept = variance >= CARRIES * variance.max()
    return [Transcripts(block.rows[:, :, kept], block.codes) for block in sides]


def law_of_calls(*sides: Transcripts, pool: int = POOL) -> str:
    """The law of the sums over the calls of a transcript, of ``pool`` numbers at most: "other"
    below ``VALUES`` of them; gaussian only where each call is, as a sum of many is nearly normal in
    its middle and not in its tails."""
    calls = [block.rows.reshape(len(block), -1) for block in sides]
    if calls[0].shape[1] != calls[-1].shape[1]:
        return "other"
    each = np.concatenate([one - one.mean(0) for one in calls])
    if _noised_residuals(each).size < VALUES:
        return "other"
    if sides[0].rows.shape[1] == 1:
        return noise_law(each, pool)
    totals = [transcript_totals(block) for block in sides]
    law = noise_law(np.concatenate([one - one.mean(0) for one in totals]), pool)
    return law if law != "gaussian" or noise_law(each, pool) == "gaussian" else "other"


def _noised_residuals(residuals: np.ndarray) -> np.ndarray:
    """Residuals (n, m) of the numbers that are noised at all (n, k), in standard deviations."""
    std = residuals.std(0)
    noised = std > 1e-9 * max(float(std.max(initial=0.0)), 1e-300)
    return np.asarray(residuals[:, noised] / std[noised])


def noise_law(residuals: np.ndarray, pool: int = POOL) -> str:
    """gaussian, laplace or other: the law of residuals (n, m), pooled over numbers that are noised
    at all."""
    values = _noised_residuals(residuals)
    if not values.size:
        return "other"
    one = values.T.reshape(-1)
    one = one[:: max(1, len(one) // pool)]
    if is_normal(one):
        return "gaussian"
    scale = np.abs(values).mean(0)
    two = (values / scale).T.reshape(-1)
    two = two[:: max(1, len(two) // pool)]
    return "laplace" if stats.kstest(two, "laplace").pvalue > NOT_REJECTED else "other"


def is_normal(values: np.ndarray) -> bool:
    """Whether values (n,), 50 at least, pass two tests of normality and do not repeat."""
    spread = float(values.std())
    if (
        len(values) < 50
        or spread == 0
        or len(np.unique(values[:1000])) < 0.9 * min(len(values), 1000)
    ):
        return False
    centred = (values - values.mean()) / spread
    p = min(float(stats.normaltest(centred).pvalue), float(stats.kstest(centred, "norm").pvalue))
    return p > NOT_REJECTED


def _bound_laplace_shift(
    trained: Sides, a: np.ndarray, b: np.ndarray, level: BoundLevel
) -> ShiftBound:
    """Epsilon from below of independent Laplace numbers, signs and places learned before. Each side
    is tested by itself: skew that the record turns round is not seen on both together."""
    before = [transcript_totals(block) for block in trained]
    metric = NoiseMetric.from_sides(*before)
    seen = before[0].mean(0) - before[1].mean(0)
    error = metric.std * math.sqrt(1 / len(before[0]) + 1 / len(before[1]))
    signs = np.where(np.abs(seen) > 3 * error, np.sign(seen), 0.0)
    noise = np.concatenate([side - np.median(side, 0) for side in before])
    kept = distinct_numbers(noise, np.flatnonzero(signs), np.abs(seen) / error)
    n = len(a) + len(b)
    if not len(kept):
        return ShiftBound("laplace", transcripts=n)
    each = [(side - np.median(side, 0))[:, kept] for side in (a, b)]
    if not all(one.size >= VALUES / 2 and noise_law(one) == "laplace" for one in each):
        return ShiftBound("other", transcripts=n)
    residuals = np.concatenate(each)
    tail = stats.norm.isf(level.error / (2 * len(kept)))
    scale = np.abs(residuals).mean(0)
    gap = (a.mean(0) - b.mean(0))[kept] * signs[kept]
    relative = gap / scale
    total_error = stats.norm.isf(level.error / 2) * math.sqrt(
        2 * len(kept) * (1 / len(a) + 1 / len(b))
    )
    high = scale * (1 + tail / math.sqrt(len(residuals)))
    low = max(0.0, float((gap / high).sum()) - total_error)
    shrunk = np.maximum(relative, 0) * low / max(float(np.maximum(relative, 0).sum()), 1e-300)
    units = np.ones(len(relative))
    epsilon, about = (
        composed_epsilon("laplace", steps, units, 1.0, level.delta) for steps in (shrunk, relative)
    )
    return ShiftBound(
        "laplace", float(np.linalg.norm(relative)) / math.sqrt(2), low, epsilon, about, n
    )


def distinct_numbers(residuals: np.ndarray, kept: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Those of the numbers ``kept`` whose noise is not that of one before it, heaviest first: what
    is released twice counts once."""
    kept = kept[np.argsort(-weight[kept], kind="stable")]
    if len(kept) < 2:
        return kept
    with np.errstate(invalid="ignore"):
        alike = [
            np.abs(np.corrcoef(x, rowvar=False))
            for x in (residuals[:, kept], np.abs(residuals[:, kept]))
        ]
    limit = min(
        ALIKE, float(stats.norm.isf(NOT_REJECTED / len(kept) ** 2)) / math.sqrt(len(residuals))
    )
    same = np.nan_to_num(np.maximum(*alike)) > limit
    chosen: list[int] = []
    for at in range(len(kept)):
        chosen += [] if same[at, chosen].any() else [at]
    return np.sort(kept[chosen])


LEVELS = 32  # different shifts that a composition tells apart
CELLS = 20_000  # of a privacy loss distribution
FINEST = 1e-4  # of its losses


FAR = 3.0  # widths of discrete Gaussian noise


def composed_epsilon(
    law: str, steps: np.ndarray, scale: np.ndarray, share: float, delta: float
) -> float:
    """Epsilon at ``delta`` of independent numbers of a law of ``BY_NUMBER``, shifted by ``share``
    of ``steps`` (k,) times their scale; of more than ``LEVELS`` different steps rounded down, which
    only lowers it."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    steps, scale = steps[steps > 0], scale[steps > 0]
    total = float(steps.sum()) * share
    if law == "gaussian" or total <= 0:
        return gaussian_epsilon(float(np.linalg.norm(steps)) * share, max(delta, TINY))
    if delta == 0 and law != "discrete gaussian":
        return total
    if law == "discrete gaussian" and float(steps.max()) > FAR:
        # a composition cuts such noise off, and has nothing left of it at the other side; one step
        # of the lattice, of privacy loss shift / width^2, is more than it can differ from the
        # normal law
        mu = float(np.linalg.norm(steps)) * share
        return max(0.0, gaussian_epsilon(mu, max(delta, TINY)) - float((steps / scale).max()))
    cell = max(
        FINEST,
        (total if law != "discrete gaussian" else 10 * total + float((steps**2).sum())) / CELLS,
    )
    options = {
        "pessimistic_estimate": False,
        "value_discretization_interval": cell,
        "use_connect_dots": False,
    }
    if law == "laplace":
        scale = np.ones_like(steps)  # in units of the noise
        if len(np.unique(np.round(steps, 12))) > LEVELS:
            steps = np.floor(steps / steps.max() * LEVELS) / LEVELS * steps.max()
            steps, scale = steps[steps > 0], scale[steps > 0]
    counted = np.unique(
        np.stack([np.round(steps * scale, 12), np.round(scale, 12)]), axis=1, return_counts=True
    )
    order = np.argsort(-counted[0][0] / counted[0][1] * counted[1])[:LEVELS]
    losses = []
    for shift, width, count in zip(*counted[0][:, order], counted[1][order]):
        if law == "laplace":
            one = pld.from_laplace_mechanism(width / (shift * share), **options)
        elif law == "discrete laplace":
            one = pld.from_discrete_laplace_mechanism(share / width, round(shift), **options)
        else:
            one = pld.from_discrete_gaussian_mechanism(width / share, round(shift), **options)
        losses.append(one.self_compose(int(count)) if count > 1 else one)
    return float(
        reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(
            max(delta, TINY)
        )
    )


LEAST_TAIL_VALUES = 1000  # transcripts a side
FURTHEST = 5.0  # standard deviations: beyond them the law is taken on trust alone
TAIL_GRID = np.linspace(-1.0, FURTHEST, 49)


def tail_epsilon(pair: PairSample, level: BoundLevel) -> float:
    """Lower bound on epsilon of a record that shows in some releases only, such as a sampled one; 0
    where the side without it is not normal. How often it shows is counted; how rare that is without
    it follows from the noise's own law, with mean and deviation at the worse end of their
    confidence intervals. Direction and threshold were learned before."""
    found = _over_normal_noise(pair, LEAST_TAIL_VALUES)
    if found is None:
        return 0.0
    ways, a, b = found
    one, other = map(transcript_totals, pair.trained)
    plans = [
        (*_plan_threshold(one @ (s * w), other @ (s * w), level.delta), s * w)
        for w in ways
        for s in (1.0, -1.0)
    ]
    _, at, w = max(plans, key=lambda plan: plan[0])
    return _bound_tail(a @ w, b @ w, at, level.delta, level.error) if is_normal(b @ w) else 0.0


def _directions_and_totals(
    pair: PairSample, least: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray] | None:
    """(directions to look along, totals (n, d) of both fresh sides); None where shapes differ, or
    below ``least`` a side."""
    ways, (a, b) = shift_directions(*pair.trained, pair.axis), map(transcript_totals, pair.fresh)
    fits = ways and min(len(a), len(b)) >= least and a.shape[1] == b.shape[1] == len(ways[0])
    return (ways, a, b) if fits else None


def _over_normal_noise(
    pair: PairSample, least: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray] | None:
    """The same where the second side is normal noise alone."""
    found = _directions_and_totals(pair, least)
    return found if found and law_of_calls(pair.fresh[1]) == "gaussian" else None


def _plan_threshold(y: np.ndarray, z: np.ndarray, delta: float) -> tuple[float, float]:
    """(what the most promising threshold promises, the threshold in units of the release)."""
    return max(
        (_bound_tail(y, z, t, delta, 0.1), t)
        for t in float(z.mean()) + float(z.std(ddof=1)) * TAIL_GRID
    )


def _bound_tail(y: np.ndarray, z: np.ndarray, at: float, delta: float, error: float) -> float:
    """Clopper-Pearson for y, Student's and chi-squared limits for mean and deviation of z: a
    quarter of the error each."""
    won = int((y >= at).sum())
    n = len(y)
    m = len(z)
    share = lower_limit(won, n, error / 4)
    spread = float(z.std(ddof=1))
    highest = float(z.mean()) + stats.t.isf(error / 4, m - 1) * spread / math.sqrt(m)
    widest = spread * math.sqrt((m - 1) / stats.chi2.ppf(error / 4, m - 1))
    narrowest = spread * math.sqrt((m - 1) / stats.chi2.isf(error / 4, m - 1))
    chance = stats.norm.logsf((at - highest) / (widest if at > highest else narrowest))
    return max(0.0, math.log(share - delta) - float(chance)) if share > delta else 0.0


LEAST_SAMPLED_VALUES = 4000  # transcripts a side
SAMPLED_GRID = np.linspace(0.0, 8.0, 400)  # deviations beyond the least threshold
ABOVE = math.sqrt(3.0)  # deviations from the further point to that
DIRECTIONS = np.random.default_rng(0).standard_normal((400, 4))
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)  # points of a sphere


def sampled_epsilon(pair: PairSample, level: BoundLevel) -> float:
    """Lower bound on epsilon of normal noise plus a chance shift X; 0 where noise alone is not
    normal, or the other side is no such mixture.

    Both sides give three moments of X. Of all laws with these, the one on the two points of Gauss's
    quadrature puts the least beyond any threshold that lies root 3 deviations of the noise above
    them (Karlin and Studden 1966: the fourth derivative of the normal's tail is positive there), so
    its epsilon is a lower bound for every X that stays that far below the threshold."""
    found = _over_normal_noise(pair, LEAST_SAMPLED_VALUES)
    if found is None:
        return 0.0
    ways, a, b = found
    one, other = map(transcript_totals, pair.trained)
    gaps = [
        float((one @ w).mean() - (other @ w).mean()) / max(float((other @ w).std()), 1e-300)
        for w in ways
    ]
    at = int(np.argmax(np.abs(gaps)))
    w = ways[at] * (1.0 if gaps[at] > 0 else -1.0)
    y = a @ w
    z = b @ w
    return (
        epsilon_from_moments(y, z, level.delta, level.error)
        if is_normal(z) and _fits_mixture(y, z)
        else 0.0
    )


def _fits_mixture(y: np.ndarray, z: np.ndarray) -> bool:
    """Whether y is not rejected as a mixture of z's normal law, shifted to two places."""
    low, high, q = two_point_law(
        *(one - other for one, other in zip(_three_moments(y)[0], _three_moments(z)[0]))
    )
    centre = float(z.mean())
    spread = float(z.std(ddof=1))
    if not (high > 0 and spread > 0):
        return False

    def law(t):
        return (1 - q) * ndtr((t - centre - low) / spread) + q * ndtr((t - centre - high) / spread)

    return bool(stats.kstest(y, law).pvalue > NOT_REJECTED)


def two_point_law(mean: float, variance: float, third: float) -> tuple[float, float, float]:
    """The two places, and the share of the higher one, of the law with this mean, variance and
    third central moment."""
    if variance <= 0:
        return mean, mean, 1.0
    spread = math.sqrt(variance)
    half = third / variance / spread / 2
    up = half + math.sqrt(1 + half * half)
    return mean - spread / up, mean + spread * up, 1 / (1 + up * up)


def epsilon_from_moments(y: np.ndarray, z: np.ndarray, delta: float, error: float) -> float:
    """The smallest epsilon on the ellipsoid that normal limits give three moments and the noise's
    deviation, half of the error each."""
    (seen, of_seen), (noise, of_noise) = _three_moments(y), _three_moments(z)
    deviation = math.sqrt(noise[1])
    slopes = np.vstack(
        [-np.eye(3), [0.0, 0.5 / deviation, 0.0]]
    )  # of (moments of X, deviation) by z's moments
    spread = slopes @ of_noise @ slopes.T
    spread[:3, :3] += of_seen
    centre = np.append(seen - noise, deviation)
    values, vectors = np.linalg.eigh(spread)
    reach = float(stats.norm.isf(error / 2)) * (vectors * np.sqrt(np.maximum(values, 0.0)))
    at = max(delta, 1e-12)
    epsilons = []
    for mean, variance, third, wide in centre + DIRECTIONS @ reach.T:
        if mean <= 0:
            return 0.0
        epsilons.append(two_point_epsilon(*two_point_law(mean, variance, third), wide, at))
    return min(epsilons)


def _three_moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean, variance and third central moment (3,), and the covariance of these estimates (3,
    3)."""
    mean = float(x.mean())
    c = x - mean
    two = float((c**2).mean())
    three = float((c**3).mean())
    return np.array([mean, two, three]), np.cov(
        np.stack([c, c**2 - two, c**3 - three - 3 * two * c])
    ) / len(x)


def two_point_epsilon(low: float, high: float, q: float, noise: float, delta: float) -> float:
    """Epsilon at ``delta`` > 0 of normal noise shifted to ``high`` with a chance of q, else to
    ``low``, over thresholds above both."""
    t = high / noise + ABOVE + SAMPLED_GRID
    beyond = q * ndtr(high / noise - t) + (1 - q) * ndtr(low / noise - t) - delta
    kept = beyond > 0
    return max(0.0, float((np.log(beyond[kept]) - log_ndtr(-t[kept])).max(initial=0.0)))


FEWEST = 8  # numbers of a release: fewer tell nothing of their noise
LEAST_SYMMETRIC_VALUES = 1000  # transcripts a side
# the variance of the energy, over that of normal noise of one scale, above which lengths differ
UNEVEN = 1.3
ODDS = np.geomspace(0.25, 64, 33)  # thresholds
LENGTHS = np.geomspace(1e-2, 1e3, 800)  # in deviations of a number
TRUSTED = float(stats.norm.sf(FURTHEST))


@dataclass(frozen=True)
class SplitReleases:
    """Releases (n, d) in units of the noise, split by the record's direction: along it (n,), and
    the length of the rest (n,)."""

    numbers: np.ndarray
    along: np.ndarray
    rest: np.ndarray

    @property
    def release_lengths(self) -> np.ndarray:
        return np.hypot(self.along, self.rest)

    @property
    def is_uneven(self) -> bool:
        """Whether the noise is not of one size, by its energy apart from the record; ``noise_laws``
        is for noise of one."""
        energy = np.square(self.rest)
        return bool(energy.var() > UNEVEN * 2 / (self.numbers.shape[1] - 1) * energy.mean() ** 2)


@dataclass(frozen=True)
class NoiseFrame:
    """What training transcripts taught: centre and scale (d,) of each number, direction (d,) and
    shift of the record."""

    centre: np.ndarray
    scale: np.ndarray
    way: np.ndarray
    shift: float

    def split_releases(self, block: Transcripts) -> SplitReleases:
        numbers = (transcript_totals(block) - self.centre) / self.scale
        along = numbers @ self.way
        return SplitReleases(
            numbers, along, np.linalg.norm(numbers - np.outer(along, self.way), axis=1)
        )


def fit_noise_frame(
    present: Transcripts, absent: Transcripts, axis: np.ndarray
) -> NoiseFrame | None:
    """None where releases are not as long as the record, are too short, or have numbers without
    noise."""
    a = transcript_totals(present)
    b = transcript_totals(absent)
    if len(axis) < FEWEST or {a.shape[1], b.shape[1]} != {len(axis)} or not b.std(0).all():
        return None
    centre = b.mean(0)
    scale = b.std(0)
    way = axis / scale / np.linalg.norm(axis / scale)
    shift = float(((a - b.mean(0)) / scale @ way).mean())
    return NoiseFrame(centre, scale, way * math.copysign(1.0, shift), abs(shift))


def symmetric_epsilon(seen: NoiseFrame, trained: Sides, fresh: Sides, level: BoundLevel) -> float:
    """Lower bound on epsilon for noise that looks alike from every side, whatever law its length
    has; 0 for other noise.

    Each release without the record stands for all its rotations, so the chance of a rare event is
    the mean of a known function
    of the length. The event: the record's normal log odds, for noise as large as the release is
        apart from the record's direction, pass a threshold that was learned before. How often it
        comes with the record is counted. Nothing is assumed of
    how the length is distributed, so sound noise of any length (density exp(-epsilon |x|) too) is
    not accused."""
    sizes = {transcript_totals(block).shape[1] for block in (*trained, *fresh)}
    if min(map(len, fresh)) < LEAST_SYMMETRIC_VALUES or sizes != {len(seen.way)}:
        return 0.0
    before = [seen.split_releases(block) for block in trained]
    odds = max(
        ODDS, key=lambda one: _bound_spherical(seen, before[0], before[1], float(one), level)
    )
    present, absent = (seen.split_releases(block) for block in fresh)
    return (
        _bound_spherical(seen, present, absent, float(odds), level) if is_spherical(absent) else 0.0
    )


def is_spherical(noise: SplitReleases) -> bool:
    """Whether directions are uniform on the sphere, by their numbers and along the record, and tell
    nothing of the length."""
    d = noise.numbers.shape[1]
    length = noise.release_lengths
    law = stats.beta((d - 1) / 2, (d - 1) / 2, -1, 2)
    cosines = (noise.numbers / length[:, None])[: POOL // d + 1].ravel()
    along = noise.along / length
    uneven = stats.spearmanr(np.square(along), length)
    p = [
        one.pvalue for one in (stats.kstest(cosines, law.cdf), stats.kstest(along, law.cdf), uneven)
    ]
    return bool(min(p) > NOT_REJECTED)


def _bound_spherical(
    seen: NoiseFrame, present: SplitReleases, absent: SplitReleases, odds: float, level: BoundLevel
) -> float:
    """A quarter of the error each: Clopper-Pearson with the record; without it centre, scale along
    the record, and mean."""
    n = len(present.along)
    m = len(absent.along)
    d = len(seen.way)
    error = level.error
    tail = float(stats.norm.isf(error / 4))
    won = int(
        (present.along > seen.shift / 2 + odds * present.rest**2 / ((d - 1) * seen.shift)).sum()
    )
    share = lower_limit(won, n, error / 4)
    centre = float(absent.along.mean()) + tail * float(absent.along.std()) / math.sqrt(m)
    ratios = np.square((absent.along - absent.along.mean()) / absent.rest)
    squares = ratios * (d - 3)  # of mean 1 if as wide as the rest
    wide = math.sqrt(float(squares.mean()) + tail * float(squares.std()) / math.sqrt(m))
    if share <= level.delta or seen.shift / 2 <= centre:
        return 0.0

    def chance(length):
        return _event_chance(length, odds, seen, (seen.shift / 2 - centre) / wide, wide)

    values = chance(absent.release_lengths)
    cost = math.log(8 / error)
    most = float(max(chance(LENGTHS).max(), values.max()))
    if most < TRUSTED:
        return 0.0
    highest = (
        values.mean()
        + math.sqrt(2 * values.var(ddof=1) * cost / m)
        + 7 * most * cost / (3 * (m - 1))
    )
    return max(0.0, math.log(share - level.delta) - math.log(highest))


def _event_chance(
    length: np.ndarray, odds: float, seen: NoiseFrame, half: float, wide: float
) -> np.ndarray:
    """Of the event, for noise of this length in a uniform direction: its cosine is above a root of
    a quadratic."""
    bend = odds * np.square(length) / ((len(seen.way) - 1) * seen.shift * wide)
    root = 2 * (half + bend) / (length + np.sqrt(np.square(length) + 4 * bend * (half + bend)))
    return betainc(
        (len(seen.way) - 1) / 2, (len(seen.way) - 1) / 2, np.clip((1 - root) / 2, 0.0, 1.0)
    )


SAME_VALUE = 1e-9  # of the largest: two values that are one, but for rounding
ALIKE_ERRORS = 5.0  # standard errors that scales of one noise differ by at most
ON_LATTICE = ("discrete laplace", "discrete gaussian")
BY_NUMBER = ("gaussian", "laplace", *ON_LATTICE)


def exact_shift_bound(pair: PairSample, level: BoundLevel) -> ShiftBound | None:
    """``bound_shift`` where the shift is known: the noise (Gaussian, Laplace, or these on a
    lattice) has an estimated scale, whose confidence only epsilon from below takes into account.
    None without a known shift or law."""
    if pair.shift is None or not pair.shift.any() or min(map(len, pair.fresh)) < LEAST_SHIFT_VALUES:
        return None
    width = {block.rows.shape[1:] for block in (*pair.trained, *pair.fresh)}
    if width != {pair.shift.shape}:
        return None
    rows = [block.rows.reshape(len(block), -1) for block in pair.fresh]
    sides = [side - np.quantile(side, 0.5, axis=0, method="lower") for side in rows]
    noised = np.logical_and(*(side.any(0) for side in sides))
    moved = pair.shift.ravel() != 0
    for places in (
        noised,
        moved,
    ):  # numbers that stay tell the scale too, if their noise is of the same law
        found = _bound_by_number(
            np.abs(pair.shift.ravel()), sides, np.flatnonzero(places | moved), level
        )
        if found is not None:
            return found
    return _bound_gaussian(pair, pair.shift.sum(0), level)


def _bound_gaussian(pair: PairSample, shift: np.ndarray, level: BoundLevel) -> ShiftBound | None:
    """Bound where numbers share noise: along the direction that the noise's metric and the shift
    give, it is normal on both sides."""
    if law_of_calls(*pair.fresh) != "gaussian":
        return None
    way = NoiseMetric.from_sides(*map(transcript_totals, pair.trained)).whiten_vector(shift)
    if not np.isfinite(way).all() or not way.any():
        return None
    y, z = (transcript_totals(block) @ (way / np.linalg.norm(way)) for block in pair.fresh)
    gap = abs(float(shift @ way)) / float(np.linalg.norm(way))
    spread = max(float(y.std(ddof=1)), float(z.std(ddof=1)))
    if spread <= 1e-9 * gap or not (is_normal(y) and is_normal(z)):
        return None
    freedom = len(y) + len(z) - 2
    pooled = math.sqrt(
        ((len(y) - 1) * float(y.var(ddof=1)) + (len(z) - 1) * float(z.var(ddof=1))) / freedom
    )
    low = gap / (pooled * math.sqrt(freedom / stats.chi2.ppf(level.error, freedom)))
    about = gap / pooled
    at = max(level.delta, TINY)
    n = len(y) + len(z)
    return ShiftBound(
        "gaussian", about, low, gaussian_epsilon(low, at), gaussian_epsilon(about, at), n, True
    )


def _bound_by_number(
    shift: np.ndarray, sides: list[np.ndarray], places: np.ndarray, level: BoundLevel
) -> ShiftBound | None:
    """Numbers at ``places`` with independent noise of one law, each shifted by ``shift`` (M,).
    sides (n, M): noise of both."""
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
    spread = (
        1.0
        if np.ptp(scale) == 0 or law == "gaussian"
        else float(np.linalg.norm(steps) / steps.sum())
    )
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
    return freedom < 1 or bool(
        stats.chi2.sf(((table[0] - table[1]) ** 2 / table[1]).sum(), freedom) > NOT_REJECTED
    )


def has_law(law: str, block: Transcripts, pool: int) -> bool:
    """Whether the noise of transcripts of one input is not rejected as of this law, among at most
    ``pool`` numbers."""
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
    )  # 0.3 has neighbours in floats
    return (
        step
        if np.isfinite(step) and bool((np.abs(noise / step - np.rint(noise / step)) < 1e-6).all())
        else 0.0
    )


def fit_scale(law: str, noise: np.ndarray) -> tuple[np.ndarray, float]:
    """(k,) scales of noise (n, k) and their relative standard error; one for all where they do not
    differ. Gaussian: deviation; Laplace: mean size; of whole numbers with chances as exp(-|i|/s) or
        exp(-i^2/(2 s^2)): s."""
    size = np.abs(noise)
    mean = float(size.mean())
    if law not in ON_LATTICE:
        scale = noise.std(0) if law == "gaussian" else size.mean(0)
        error = (math.sqrt(0.5) if law == "gaussian" else 1.0) / math.sqrt(len(noise))
        mean = float(scale.mean())
        alike = bool((np.abs(scale / mean - 1) < ALIKE_ERRORS * error).all())
        return (
            (np.full(len(scale), mean), error / math.sqrt(len(scale))) if alike else (scale, error)
        )
    if law == "discrete gaussian":
        square = np.square(noise)
        error = float(square.std() / square.mean()) / 2 / math.sqrt(noise.size)
        return np.full(noise.shape[1], math.sqrt(float(square.mean()))), error
    # the mean size is 2 q / (1 - q^2), q = exp(-1/s): q = sqrt(1 + 1/mean^2) - 1/mean, the
    # exponential of -asinh(1/mean)
    scale_of_all = 1 / math.asinh(1 / mean)
    return np.full(noise.shape[1], scale_of_all), float(size.std()) / mean / math.sqrt(noise.size)

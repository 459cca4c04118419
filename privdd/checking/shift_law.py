"""What a shift costs under the noise's own law: far sharper than counting, and it trusts that law in the tails.

Fresh transcripts of both inputs are projected on a direction learned beforehand. Where their residuals are normal, the
shift is at least ``mu`` standard deviations at the asked confidence, and mu-GDP gives epsilon (Dong, Roth and Su 2022).
Where every number has Laplace residuals, epsilon is that of the Laplace mechanism with the shift seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from attacks.epsilon import gaussian_epsilon
from privdd.checking.learned import Metric, shift_directions, totals
from privdd.checking.sampled import Block

NOT_REJECTED = 1e-4  # p-value above which a law is taken for the noise's
POOL = 40_000
LEAST = 150  # transcripts a side
VALUES = 4000  # numbers from which a law is told: among fewer, logistic noise passes for normal
ALIKE = 0.9  # correlation from which two numbers hold the same noise, however few transcripts there are
CARRIES = 0.1  # of the largest variance in a projection: numbers with less hardly shape its law
DRAWS = 200_000


@dataclass(frozen=True)
class Shift:
    """law: gaussian, laplace, or other (no epsilon is said then); mu: shift over noise, best guess, and from below.

    epsilon: from below at the asked confidence; about: from the best guess.
    """

    law: str
    mu: float
    mu_low: float
    epsilon: float
    about: float
    transcripts: int


NOTHING = Shift("other", 0.0, 0.0, 0.0, 0.0, 0)


def shift(
    trained: tuple[Block, Block],
    fresh: tuple[Block, Block],
    axis: np.ndarray | None,
    *,
    delta: float,
    confidence: float,
) -> Shift:
    """The cost of the shift between two inputs. NOTHING where there is no shift, no noise, or no law for it."""
    ways = shift_directions(*trained, axis)
    a, b = totals(fresh[0]), totals(fresh[1])
    if not ways or min(len(a), len(b)) < LEAST or a.shape[1] != b.shape[1] or a.shape[1] != len(ways[0]):
        return NOTHING
    law = law_of_calls(*fresh)
    if law == "laplace":
        return _laplace(trained, a, b, delta, confidence)
    w = max(ways, key=lambda w: _honest(trained, w))
    y, z = a @ w, b @ w
    gap, spread = abs(float(y.mean() - z.mean())), max(float(y.std(ddof=1)), float(z.std(ddof=1)))
    if spread <= 1e-9 * gap or gap == 0:
        return NOTHING
    mu = gap / spread
    passes = law == "gaussian" and normal(y) and normal(z)
    if not passes or law_of_calls(*_carrying((*trained, *fresh), w)) != "gaussian":
        return Shift("other", mu, 0.0, 0.0, 0.0, len(y) + len(z))
    low = mu_from_below(y, z, confidence)
    at = max(delta, 1e-12)
    return Shift("gaussian", mu, low, gaussian_epsilon(low, at), gaussian_epsilon(mu, at), len(y) + len(z))


def _honest(trained: tuple[Block, Block], w: np.ndarray) -> float:
    """Squared shift on the training transcripts, less what a learned direction finds in noise alone."""
    a, b = (totals(block) @ w for block in trained)
    mu = float(a.mean() - b.mean()) / max(float(a.std()), float(b.std()), 1e-300)
    return mu * mu - (len(w) + 1) * (1 / len(a) + 1 / len(b)) * (np.count_nonzero(w) > 1)


def mu_from_below(y: np.ndarray, z: np.ndarray, confidence: float) -> float:
    """A lower limit of |mean difference| / std of normal samples: the difference takes half of the error probability."""
    tail = (1 - confidence) / 2
    spread, freedom = max((float(y.std(ddof=1)), len(y) - 1), (float(z.std(ddof=1)), len(z) - 1))
    highest = spread * math.sqrt(freedom / stats.chi2.ppf(tail / 2, freedom))  # of either sample
    error = highest * math.sqrt(1 / len(y) + 1 / len(z)) * stats.norm.isf(tail / 2)
    return max(0.0, (abs(float(y.mean() - z.mean())) - error) / highest)


def _carrying(sides: tuple[Block, ...], w: np.ndarray) -> list[Block]:
    """The same transcripts with those numbers alone that a projection on w (m,) is made of: the law of a count beside a
    hundred normal numbers shows in it, and hardly in all together."""
    variance = np.square(w) * np.sum([totals(block).var(0) for block in sides], axis=0)
    kept = variance >= CARRIES * variance.max()
    return [Block(block.rows[:, :, kept], block.codes) for block in sides]


def law_of_calls(*sides: Block, pool: int = POOL) -> str:
    """The law of the sums over the calls of a transcript: "other" below ``VALUES`` noised numbers, which tell laws apart
    too badly. pool: numbers that are looked at, at most.

    A sum of many is nearly normal in its middle whatever its parts are, and not in its tails, so it is gaussian only where
    the noise of each call is.
    """
    calls = [block.rows.reshape(len(block), -1) for block in sides]
    if calls[0].shape[1] != calls[-1].shape[1]:
        return "other"
    each = np.concatenate([one - one.mean(0) for one in calls])
    if _noised(each).size < VALUES:
        return "other"
    if sides[0].rows.shape[1] == 1:
        return noise_law(each, pool)
    law = noise_law(np.concatenate([totals(block) - totals(block).mean(0) for block in sides]), pool)
    return law if law != "gaussian" or noise_law(each, pool) == "gaussian" else "other"


def _noised(residuals: np.ndarray) -> np.ndarray:
    """Residuals (n, m) of the numbers that are noised at all (n, k), in standard deviations."""
    std = residuals.std(0)
    noised = std > 1e-9 * max(float(std.max(initial=0.0)), 1e-300)
    return np.asarray(residuals[:, noised] / std[noised])


def noise_law(residuals: np.ndarray, pool: int = POOL) -> str:
    """gaussian, laplace or other: the law of residuals (n, m), pooled over numbers that are noised at all."""
    values = _noised(residuals)
    if not values.size:
        return "other"
    one = values.T.reshape(-1)
    one = one[:: max(1, len(one) // pool)]
    if normal(one):
        return "gaussian"
    scale = np.abs(values).mean(0)
    two = (values / scale).T.reshape(-1)
    two = two[:: max(1, len(two) // pool)]
    return "laplace" if stats.kstest(two, "laplace").pvalue > NOT_REJECTED else "other"


def normal(values: np.ndarray) -> bool:
    """Whether values (n,), 50 at least, pass two tests of normality and do not repeat."""
    spread = float(values.std())
    if len(values) < 50 or spread == 0 or len(np.unique(values[:1000])) < 0.9 * min(len(values), 1000):
        return False
    centred = (values - values.mean()) / spread
    p = min(float(stats.normaltest(centred).pvalue), float(stats.kstest(centred, "norm").pvalue))
    return p > NOT_REJECTED


def _laplace(trained: tuple[Block, Block], a: np.ndarray, b: np.ndarray, delta: float, confidence: float) -> Shift:
    """Lower bound of the epsilon of independent Laplace numbers shifted as seen, signs and places learned before.

    Of the numbers that the record moves each side is to be Laplace noise by itself: skew that the record turns round is
    not seen on both together.
    """
    before = [totals(block) for block in trained]
    metric, seen = Metric.of(*before), before[0].mean(0) - before[1].mean(0)
    error = metric.std * math.sqrt(1 / len(before[0]) + 1 / len(before[1]))
    signs = np.where(np.abs(seen) > 3 * error, np.sign(seen), 0.0)
    kept = _unlike(
        np.concatenate([side - np.median(side, 0) for side in before]), np.flatnonzero(signs), np.abs(seen) / error
    )
    n = len(a) + len(b)
    if not len(kept):
        return Shift("laplace", 0.0, 0.0, 0.0, 0.0, n)
    each = [(side - np.median(side, 0))[:, kept] for side in (a, b)]
    if not all(one.size >= VALUES / 2 and noise_law(one) == "laplace" for one in each):
        return Shift("other", 0.0, 0.0, 0.0, 0.0, n)
    residuals = np.concatenate(each)
    tail = stats.norm.isf((1 - confidence) / (2 * len(kept)))
    scale = np.abs(residuals).mean(0)
    gap = (a.mean(0) - b.mean(0))[kept] * signs[kept]
    relative = gap / scale
    total_error = stats.norm.isf((1 - confidence) / 2) * math.sqrt(2 * len(kept) * (1 / len(a) + 1 / len(b)))
    high = scale * (1 + tail / math.sqrt(len(residuals)))
    low = max(0.0, float((gap / high).sum()) - total_error)
    shrunk = np.maximum(relative, 0) * low / max(float(np.maximum(relative, 0).sum()), 1e-300)
    epsilon, about = (_laplace_epsilon(each, delta) for each in (shrunk, np.maximum(relative, 0)))
    return Shift("laplace", float(np.linalg.norm(relative)) / math.sqrt(2), low, epsilon, about, n)


def _unlike(residuals: np.ndarray, kept: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Those of the numbers ``kept`` whose noise is not that of one before it, heaviest first: some are released twice, in
    other words or with another sign, and count once."""
    kept = kept[np.argsort(-weight[kept], kind="stable")]
    if len(kept) < 2:
        return kept
    with np.errstate(invalid="ignore"):
        alike = [np.abs(np.corrcoef(x, rowvar=False)) for x in (residuals[:, kept], np.abs(residuals[:, kept]))]
    limit = min(ALIKE, float(stats.norm.isf(NOT_REJECTED / len(kept) ** 2)) / math.sqrt(len(residuals)))
    same = np.nan_to_num(np.maximum(*alike)) > limit
    chosen: list[int] = []
    for at in range(len(kept)):
        if not same[at, chosen].any():
            chosen.append(at)
    return np.sort(kept[chosen])


def _laplace_epsilon(shifts: np.ndarray, delta: float) -> float:
    """Epsilon of Laplace(1) numbers shifted by ``shifts`` (k,), from below: at delta 1e-4 if delta is smaller and above 0.

    One number alone, or delta 0: the sum of shifts, less what delta buys where there is one number.
    """
    total = float(shifts.sum())
    if delta == 0 or total == 0:
        return total
    if len(shifts) == 1:  # delta(eps) = 1 - e^((eps - total) / 2)
        return max(0.0, total + 2 * math.log1p(-delta))
    at = max(delta, 1e-4)
    x = np.random.default_rng(0).laplace(size=(DRAWS // max(1, len(shifts) // 20), len(shifts)))
    losses = (np.abs(x + shifts) - np.abs(x)).sum(1)
    low, high = 0.0, total
    for _ in range(40):
        middle = (low + high) / 2
        parts = np.where(losses > middle, -np.expm1(np.minimum(middle - losses, 0)), 0.0)
        low, high = (middle, high) if parts.mean() > at else (low, middle)
    return low

"""A record that shows in some releases only: how often is counted, how rare that is without it is the noise's own law.

A sampled record moves a few releases far. Errors that are counted on both sides show an epsilon of ln n at most; where the
data without the record are all zeros, what is released of them is noise alone. If that is normal, the share of releases
beyond a threshold follows from its mean and deviation, both taken at the worse end of their confidence intervals.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from scipy.special import betaincinv

from privdd.checking.called import Data
from privdd.checking.learned import shift_directions, totals
from privdd.checking.sampled import Block
from privdd.checking.shift_law import law_of_calls, normal

LEAST = 1000  # transcripts a side
FURTHEST = 5.0  # standard deviations: beyond them the law is taken on trust alone
GRID = np.linspace(-1.0, FURTHEST, 49)


def quiet(data: Data, nothing: float) -> bool:
    """Whether nothing but (nearly) zeros is in the data."""
    arrays = [data] if isinstance(data, np.ndarray) else data[0] if isinstance(data, tuple) else [data]
    return all(bool(np.all(np.abs(a) <= nothing)) for part in arrays for a in part)


def tail_epsilon(
    trained: tuple[Block, Block],
    fresh: tuple[Block, Block],
    axis: np.ndarray | None,
    *,
    delta: float,
    confidence: float,
) -> float:
    """Lower bound on epsilon; 0 where the side without the record is not normal. Direction and threshold were learned before."""
    found = over_normal_noise(trained, fresh, axis, LEAST)
    if found is None:
        return 0.0
    ways, a, b = found
    before = [totals(block) for block in trained]
    plans = [(*_planned(before[0] @ (s * w), before[1] @ (s * w), delta), s * w) for w in ways for s in (1.0, -1.0)]
    _, at, w = max(plans, key=lambda plan: plan[0])
    y, z = a @ w, b @ w
    if not normal(z):
        return 0.0
    return _bound(y, z, at, delta, 1 - confidence)


def over_normal_noise(
    trained: tuple[Block, Block], fresh: tuple[Block, Block], axis: np.ndarray | None, least: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray] | None:
    """(directions to look along, totals (n, d) of both fresh sides), where the second side is normal noise alone; None
    where it is not, where shapes differ, or below ``least`` transcripts a side."""
    ways = shift_directions(*trained, axis)
    a, b = totals(fresh[0]), totals(fresh[1])
    if not ways or min(len(a), len(b)) < least or a.shape[1] != b.shape[1] or a.shape[1] != len(ways[0]):
        return None
    return (ways, a, b) if law_of_calls(fresh[1]) == "gaussian" else None


def _planned(y: np.ndarray, z: np.ndarray, delta: float) -> tuple[float, float]:
    """The most promising threshold (in units of the release), and what it promises."""
    found = [(_bound(y, z, t, delta, 0.1), t) for t in float(z.mean()) + float(z.std(ddof=1)) * GRID]
    return max(found)


def _bound(y: np.ndarray, z: np.ndarray, at: float, delta: float, error: float) -> float:
    """Clopper-Pearson for y, Student's and chi-squared limits for mean and deviation of z: a quarter of the error each."""
    won, n, m = int((y >= at).sum()), len(y), len(z)
    share = float(betaincinv(won, n - won + 1, error / 4)) if won else 0.0
    spread = float(z.std(ddof=1))
    highest = float(z.mean()) + stats.t.isf(error / 4, m - 1) * spread / math.sqrt(m)
    widest = spread * math.sqrt((m - 1) / stats.chi2.ppf(error / 4, m - 1))
    narrowest = spread * math.sqrt((m - 1) / stats.chi2.isf(error / 4, m - 1))
    chance = stats.norm.logsf((at - highest) / (widest if at > highest else narrowest))
    return max(0.0, math.log(share - delta) - float(chance)) if share > delta else 0.0

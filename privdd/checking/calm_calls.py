"""Calls whose noise is small as a whole, told by the numbers in which the record does not show.

Shares of noise that went missing, coins that decide who is noised, a scale drawn anew for each call: over all calls such
noise follows no law that is known here. Among the calls with the least energy apart from the record's direction it is
nearer to a normal one, and smaller. Let these calls have a share p with the record and q without it; an (epsilon,
delta)-DP mechanism is, among them, (epsilon + ln(q / p), delta / p)-indistinguishable.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.special import betaincinv

from privdd.checking.learned import Metric, totals
from privdd.checking.sampled import Block
from privdd.checking.shift_law import NOTHING, Shift, shift

SHARE = 0.15  # of the calls without the record
FEWEST = 8  # numbers of a release: fewer tell nothing of its noise
UNEVEN = 1.3  # the energy's variance, over that of normal noise of one scale, above which calls differ


def calm_shift(
    trained: tuple[Block, Block],
    fresh: tuple[Block, Block],
    axis: np.ndarray | None,
    *,
    delta: float,
    confidence: float,
) -> Shift:
    """What the shift costs among calm calls; NOTHING where calls have noise of one size, or no law fits among them."""
    before = [totals(block) for block in trained]
    if axis is None or len(axis) < FEWEST or any(rows.shape[1] != len(axis) for rows in before):
        return NOTHING
    if any(block.rows.shape[2] != len(axis) for block in fresh):
        return NOTHING
    metric = Metric.of(*before)
    along = axis / metric.std
    along = along / np.linalg.norm(along)
    parts = [_apart(block, metric, along) for block in (*trained, *fresh)]
    usual = parts[1][1]
    if usual.var() < UNEVEN * 2 / (len(axis) - 1) * usual.mean() ** 2:
        return NOTHING
    at = float(np.quantile(usual, SHARE))
    calm = [Block(rows[energy <= at], ["calm"] * int((energy <= at).sum())) for rows, energy in parts]
    error, of = 1 - confidence, [len(block) for block in fresh]
    least = _from_below(len(calm[2]), of[0], error / 4)
    most = 1 - _from_below(of[1] - len(calm[3]), of[1], error / 4)
    if not least > delta or min(len(block) for block in calm) < FEWEST:
        return NOTHING
    found = shift((calm[0], calm[1]), (calm[2], calm[3]), np.ones(1), delta=delta / least, confidence=1 - error / 2)
    return replace(found, epsilon=max(0.0, found.epsilon + math.log(least / most)))


def _apart(block: Block, metric: Metric, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Along the record (n, 1, 1), in units of the noise, and the energy (n,) of all that is perpendicular to it."""
    white = (totals(block) - metric.centre) / metric.std
    place = white @ along
    return place[:, None, None], np.square(white - np.outer(place, along)).mean(1)


def _from_below(won: int, of: int, error: float) -> float:
    """Clopper-Pearson."""
    return float(betaincinv(won, of - won + 1, error)) if won else 0.0

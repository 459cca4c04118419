"""Statistics that may tell two inputs apart, learned on some transcripts to be judged on others.

Each statistic turns a block of transcripts into one score a transcript. They look for a shift (Fisher's direction, or
the known direction in which the record moves, in the noise's own metric), for another amount of noise (energy,
extremes), for a call or row among many that holds the record (largest and smallest projection, and the log of the mean
likelihood ratio), for values that keep coming back (no continuous noise has them), and for everything that is
no number (shapes, types, names, NaN): each such mark counts by its own odds, however rare it is beside noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import logsumexp

from privdd.checking.marks import Marks
from privdd.checking.sampled import Block

PRODUCTS = 24  # numbers of a transcript up to which their products are looked at too
WIDE = 300  # numbers above which the covariance of the noise is taken to be diagonal
FLOOR = 1e-12  # relative: variances below are taken for rounding
ROUNDING = 1e-9  # of the largest number: pieces that hold the same noise differ in less
WHOLE, PARTS = "odds of the marks", "odds of each mark"
OF_ANY_SIZE = {"what is no number", WHOLE, PARTS}  # statistics that releases of any size have
Statistic = Callable[[Block], np.ndarray]


@dataclass(frozen=True)
class Metric:
    """The noise's own metric, from transcripts. centre (m,): mean; std (m,); precision (m, m) or None (diagonal)."""

    centre: np.ndarray
    std: np.ndarray
    precision: np.ndarray | None

    @staticmethod
    def of(*sides: np.ndarray) -> Metric:
        """From sides (n, m), each about its own mean; the centre is the last side's."""
        residuals = np.concatenate([side - side.mean(0) for side in sides])
        n, m = residuals.shape
        std = np.sqrt(np.square(residuals).sum(0) / max(1, n - len(sides)))
        largest = float(np.abs(np.concatenate(sides)).max(initial=0.0))
        floor = max(largest * 1e-13, FLOOR * float(std.max(initial=0.0)), 1e-60)
        precision = None
        if m <= WIDE and n > 3 * m:
            scale = np.maximum(std, floor)
            inner = (residuals / scale).T @ (residuals / scale) / max(1, n - len(sides))
            values, vectors = np.linalg.eigh(inner)
            precision = (vectors / np.maximum(values, 1e-9)) @ vectors.T / scale / scale[:, None]
        return Metric(sides[-1].mean(0), np.maximum(std, floor), precision)

    def whitened(self, v: np.ndarray) -> np.ndarray:
        """Sigma^-1 v, (m,) or (n, m)."""
        return v / np.square(self.std) if self.precision is None else v @ self.precision


def totals(block: Block) -> np.ndarray:
    """(n, m): the sum over a transcript's calls, sufficient for a shift under independent Gaussian noise."""
    return block.rows.sum(1)


def shift_directions(present: Block, absent: Block, axis: np.ndarray | None) -> list[np.ndarray]:
    """Directions (m,) along which the sums of two training blocks differ: learned, and along ``axis`` if it fits."""
    a, b = totals(present), totals(absent)
    if a.shape[1] != b.shape[1] or not a.shape[1]:
        return []
    metric, gap = Metric.of(a, b), a.mean(0) - b.mean(0)
    found = [metric.whitened(gap)]
    if axis is not None and len(axis) == a.shape[1]:
        found.append(metric.whitened(axis * np.sign(axis @ found[0] or 1.0)))
    elif axis is not None and a.shape[1] % len(axis) == 0:  # several pieces, each as long as the record
        found.append(metric.whitened(np.outer(gap.reshape(-1, len(axis)) @ axis, axis).ravel()))
    noise = metric.std * np.sqrt(1 / len(a) + 1 / len(b))
    kept = np.where(np.abs(gap) > 3 * noise, gap, 0.0)
    if kept.any() and (kept == 0).any():
        found.append(metric.whitened(kept))
    return [w / np.linalg.norm(w) for w in found if np.isfinite(w).all() and w.any()]


def statistics(present: Block, absent: Block, axis: np.ndarray | None) -> dict[str, Statistic]:
    """Name -> statistic, learned from two training blocks of the same pair."""
    usual = present.usual
    found: dict[str, Statistic] = {
        "what is no number": lambda block: np.array([c == usual for c in block.codes], float)
    }
    if (marks := Marks.of(present, absent)) is not None:
        found |= {WHOLE: marks.odds_of_all(present, absent), PARTS: marks.odds_of_each(present, absent)}
    if present.rows.shape[1:] != absent.rows.shape[1:] or not present.rows.shape[2]:
        return found
    for at, w in enumerate(shift_directions(present, absent, axis)):
        found[f"shift {at}"] = partial(_along, w=w)
    metric = Metric.of(absent.rows.reshape(-1, absent.rows.shape[2]))
    found["energy"] = lambda block: np.square(_scored(block, metric)).sum((1, 2))
    found["largest number"] = lambda block: _scored(block, metric).max((1, 2))
    found["smallest number"] = lambda block: _scored(block, metric).min((1, 2))
    found["weakest number"] = lambda block: np.abs(_scored(block, metric)).min((1, 2))
    found |= _by_call(present, absent, axis) | _by_products(present, absent)
    return found | _by_value(present, absent) | _calls_weighed(present, absent, axis)


def _by_value(present: Block, absent: Block) -> dict[str, Statistic]:
    """Numbers that come back exactly, as no continuous noise lets them: the share of them, and the odds of each outcome."""
    width = present.rows.shape[2]
    a, b = (block.rows.reshape(-1, width) for block in (present, absent))
    known = [(j, np.unique(x)) for j, x in enumerate(a.T)]
    again = [(j, u) for j, u in known if len(u) < len(a) or len(np.unique(b[:, j])) < len(b)]
    if not again:
        return {}
    found: dict[str, Statistic] = {
        "values that come back": lambda block: np.mean(
            [np.isin(block.rows[:, :, j], u).mean(1) for j, u in again], axis=0
        )
    }
    seen = [Counter(outcomes(block)) for block in (present, absent)]
    if len(seen[0]) + len(seen[1]) <= (len(present) + len(absent)) / 4:
        shift = np.log(len(absent) / len(present))
        found["odds of the outcome"] = lambda block: (
            shift + np.array([np.log((seen[0][x] + 0.5) / (seen[1][x] + 0.5)) for x in outcomes(block)])
        )
    return found


def _by_products(present: Block, absent: Block) -> dict[str, Statistic]:
    """Fisher's direction over the numbers and their products: a flag that says whether to look, or noise that correlates."""
    if present.rows[0].size > PRODUCTS:
        return {}
    centre = Metric.of(absent.rows.reshape(len(absent), -1)).centre
    pairs = np.triu_indices(len(centre))

    def products(block: Block) -> np.ndarray:
        flat = block.rows.reshape(len(block), -1) - centre
        return np.concatenate([flat, flat[:, pairs[0]] * flat[:, pairs[1]]], axis=1)

    a, b = products(present), products(absent)
    way = Metric.of(a, b).whitened(a.mean(0) - b.mean(0))
    return {"numbers and their products": lambda block: products(block) @ way} if np.isfinite(way).all() else {}


def outcomes(block: Block) -> list[tuple[str, bytes]]:
    return [(code, row.tobytes()) for code, row in zip(block.codes, block.rows)]


def _calls_weighed(present: Block, absent: Block, axis: np.ndarray | None) -> dict[str, Statistic]:
    """Calls that have less noise than others, or share theirs, count for more than in the sum."""
    if present.rows.shape[1] < 2:
        return {}
    found: dict[str, Statistic] = {}
    for at, w in enumerate(shift_directions(present, absent, axis)[:2]):
        a, b = present.rows @ w, absent.rows @ w
        over = Metric.of(a, b).whitened(a.mean(0) - b.mean(0))
        if np.isfinite(over).all() and over.any():
            found[f"shift {at}, calls weighed"] = partial(_over_calls, w=w, over=over / np.linalg.norm(over))
    return found


def _over_calls(block: Block, w: np.ndarray, over: np.ndarray) -> np.ndarray:
    return (block.rows @ w) @ over


def _scored(block: Block, metric: Metric) -> np.ndarray:
    return (block.rows - metric.centre) / metric.std


def _by_call(present: Block, absent: Block, axis: np.ndarray | None) -> dict[str, Statistic]:
    """For transcripts of several calls, or calls that return several rows: the row that holds the record."""
    width = present.rows.shape[2]
    if axis is None:
        return {}
    size = len(axis) if width % len(axis) == 0 else width
    if present.rows.shape[1] * width == size:
        return {}
    u = axis if size == len(axis) else (present.rows - absent.rows[: len(present)]).mean((0, 1))

    def projected(block: Block) -> np.ndarray:
        return block.rows.reshape(len(block), -1, size) @ u

    def one_shifted(block: Block, step: float) -> np.ndarray:
        return logsumexp(step * (projected(block) - centre) / spread, axis=1)

    centre = projected(absent).mean(0)
    spread = float(projected(absent).std(0).mean()) or 1.0
    least = ROUNDING * float(np.abs(projected(absent)).max(initial=0.0)) or 1.0
    found: dict[str, Statistic] = {
        "largest call": lambda block: (projected(block) - centre).max(1),
        "smallest call": lambda block: (projected(block) - centre).min(1),
        "spread over calls": lambda block: np.round(projected(block).std(1) / least),  # rounding is for ``float_bits``
    }
    for step in (1.0, 2.0, 4.0):
        found[f"one call shifted by {step:g}"] = partial(one_shifted, step=step)
    return found


def _along(block: Block, w: np.ndarray) -> np.ndarray:
    return totals(block) @ w

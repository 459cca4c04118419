"""What the mechanisms of the corpus are made of."""

from __future__ import annotations

from collections.abc import Sequence

import dp_accounting as dpa
import numpy as np

C = 1.0
DELTA = 1e-5
RNG = np.random.default_rng()  # fresh in every process


def sigma(epsilon: float, delta: float = DELTA) -> float:
    """Noise over sensitivity of the Gaussian mechanism, exact (Balle and Wang 2018)."""
    return float(dpa.get_sigma_gaussian(epsilon, delta))


def poisson_epsilon(q: float, z: float, steps: int = 1) -> float:
    event = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z)), steps)
    return float(dpa.pld.PLDAccountant().compose(event).get_epsilon(DELTA))


def norm(arrays: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(a))) for a in arrays)))


def clipped(arrays: Sequence[np.ndarray], bound: float = C) -> list[np.ndarray]:
    """Scaled to an L2 norm of at most ``bound`` over all arrays; zeros if any number is not
    finite."""
    size = norm(arrays)
    if not np.isfinite(size):
        return [np.zeros_like(a) for a in arrays]
    factor = min(1.0, bound / max(size, 1e-30))
    return [a * factor for a in arrays]


def rows_clipped(x: np.ndarray, bound: float = C) -> np.ndarray:
    """Each row scaled to an L2 norm of at most ``bound``; rows that are not finite are zeros."""
    x = np.where(np.isfinite(x).all(1, keepdims=True), x, 0.0)
    return x * np.minimum(1.0, bound / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30))


def noised(arrays: Sequence[np.ndarray], std: float) -> list[np.ndarray]:
    return [a + RNG.normal(0.0, std, np.shape(a)) for a in arrays]


def mean_of(
    updates: Sequence[Sequence[np.ndarray]], weights: Sequence[float] | None = None
) -> list[np.ndarray]:
    shares = np.ones(len(updates)) if weights is None else np.asarray(weights, float)
    shares = shares / shares.sum()
    return [sum(s * a for s, a in zip(shares, parts)) for parts in zip(*updates)]

"""Tests of a stated guarantee, strongest first: sensitivity (T1), likelihood ratios (T2), attacks (T3).

T1 needs no statistics: it compares a mechanism before its noise on neighbouring data with the same
coins. T2 certifies "not (epsilon, delta)-DP" from likelihood ratios, with no ceiling by the number of
runs. T3 classifies runs with and without a record. A search that finds nothing proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import betaincinv
from sklearn.covariance import ledoit_wolf_shrinkage
from torch import Tensor

from attacks.arrays import arrays
from attacks.epsilon import Bound, best_threshold, from_scores


@dataclass(frozen=True)
class Certificate:
    """T2's result: not (epsilon, delta)-DP for every delta below ``delta_below``, at ``confidence``."""

    epsilon: float
    delta_below: float
    confidence: float


@arrays
def likelihood_ratio_certificate(ratios: Tensor, *, k: int = 5, confidence: float = 0.95) -> Certificate:
    """T2 from n independent draws of L = ln P(o)/Q(o), o drawn from P (natural logarithm).

    delta(eps) = E_P[(1 - e^(eps - L))_+] >= P_P(L >= eps + ln 2) / 2, and with k fixed beforehand the
    k-th largest draw L_(k) has P_P(L >= L_(k)) >= BetaInv(1 - confidence; k, n - k + 1) at the stated
    confidence (order statistics). So the mechanism is not (L_(k) - ln 2, delta)-DP for any delta
    below half of that. Run it on both orders of the pair at 1 - alpha/2 each.
    """
    values = torch.as_tensor(ratios).double()
    if values.ndim != 1 or not 1 <= k <= len(values) or values.isnan().any():
        raise ValueError(f"ratios {tuple(values.shape)}, k={k}: n >= k draws without NaN are needed")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: a number in (0, 1) is needed")
    share = float(betaincinv(k, len(values) - k + 1, 1 - confidence))
    largest = float(values.topk(k).values[-1])
    return Certificate(max(largest - math.log(2), 0.0), share / 2, confidence)


@arrays
def gaussian_log_ratio(outputs: Tensor, mean_p: Tensor, mean_q: Tensor, std: float | Tensor) -> Tensor:
    """ln N(o; mean_p, std^2) / N(o; mean_q, std^2), summed over coordinates: outputs (n, d) -> (n,) float64."""
    o, p, q = outputs.double(), mean_p.double(), mean_q.double()
    scale = torch.as_tensor(std, dtype=torch.float64)
    if not bool((scale > 0).all()):
        raise ValueError("std: positive numbers are needed")
    return (((o - q).square() - (o - p).square()) / (2 * scale.square())).sum(-1)


@arrays
def subsampled_log_ratio(ratios: Tensor, probability: float) -> Tensor:
    """ln of (1 - q) Q + q P over Q, from per-release ratios ln P/Q (n, steps) -> their sum (n,).

    For a record that joins each release by an independent coin of ``probability`` q in (0, 1].
    """
    if not 0 < probability <= 1:
        raise ValueError(f"probability={probability}: a number in (0, 1] is needed")
    stay = math.log1p(-probability) if probability < 1 else -math.inf
    mixed = torch.logaddexp(ratios.double() + math.log(probability), torch.full_like(ratios.double(), stay))
    return mixed.sum(-1)


@arrays
def attack_runs(
    inside: Tensor, outside: Tensor, *, delta: float, generator: np.random.Generator, confidence: float = 0.95
) -> Bound:
    """T3: Clopper-Pearson from statistics (R, d) of independent runs with and without the record.

    Of each side 40 % fit a linear discriminant (covariance shrunk after Ledoit and Wolf 2004), 10 %
    choose the threshold, and the untouched half is judged, so the bound is finite-sample valid.
    """
    parts = [_shares(side, generator) for side in (inside, outside)]
    direction = _discriminant(parts[0][0], parts[1][0])
    choose, judge = (
        (np.concatenate([p[i] @ direction for p in parts]), np.arange(sum(len(p[i]) for p in parts)) < len(parts[0][i]))
        for i in (1, 2)
    )
    at = best_threshold(*choose, delta)
    return from_scores(*judge, delta=delta, confidence=confidence, thresholds=[at])


def _shares(side: Tensor, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = torch.as_tensor(side).double().numpy()
    if rows.ndim != 2 or len(rows) < 20 or not np.isfinite(rows).all():
        raise ValueError(f"statistics {rows.shape}: (R, d) with R >= 20 and finite entries are needed")
    order = generator.permutation(len(rows))
    fit, choose = int(0.4 * len(rows)), int(0.5 * len(rows))
    return rows[order[:fit]], rows[order[fit:choose]], rows[order[choose:]]


def _discriminant(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Fisher's direction S^-1 (m1 - m0), solved in the span of the samples where d exceeds their number."""
    gap = inside.mean(0) - outside.mean(0)
    rows = np.concatenate([inside - inside.mean(0), outside - outside.mean(0)])
    share = float(ledoit_wolf_shrinkage(rows, assume_centered=True))
    ridge = share * max(float((rows**2).mean()), np.finfo(float).tiny) + np.finfo(float).tiny
    scale = (1 - share) / len(rows)
    if rows.shape[1] <= len(rows):
        return np.linalg.lstsq(scale * rows.T @ rows + ridge * np.eye(rows.shape[1]), gap, rcond=None)[0]
    inner = ridge * np.eye(len(rows)) + scale * rows @ rows.T  # Woodbury's identity
    return (gap - scale * rows.T @ np.linalg.lstsq(inner, rows @ gap, rcond=None)[0]) / ridge

"""Clip each record's contribution, however many tensors it spans, to one norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privdd.core.types import Tensors

SAFE = 1 - 1e-6  # so that float32 rounding cannot lift a clipped row above its bound


def positive(value: object, name: str) -> float:
    """``value`` as a finite float above 0. Raises ValueError that names the field."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r}: a finite number above 0 is needed")
    return float(value)


def as_rows(tensor: Tensor) -> Tensor:
    """(n, ...) -> (n, d), also for n = 0 and for one number a record."""
    return tensor.reshape(len(tensor), math.prod(tensor.shape[1:]))


def record_norms(contributions: Tensors, order: int = 2) -> Tensor:
    """Norm (L2, or L1 with order=1) of each record's concatenated contribution -> (n,)."""
    parts = [torch.linalg.vector_norm(as_rows(tensor), ord=order, dim=1) for tensor in contributions.values()]
    return torch.linalg.vector_norm(torch.stack(parts), ord=order, dim=0)


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """The factor of each record: min(1, C / norm), and 0 where its norm is not finite."""
    factors = (clip_norm * SAFE / norms.clamp_min(1e-30)).clamp_max(1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(factors))


def weighted_sum(contributions: Tensors, factors: Tensor) -> dict[str, Tensor]:
    """Sum over records of factor times contribution; a record of factor 0 is left out, even if it holds NaN."""
    kept = factors > 0
    whole = bool(kept.all())
    sums = {}
    for name, tensor in contributions.items():
        rows, weights = (tensor, factors) if whole else (tensor[kept], factors[kept])
        sums[name] = (weights.to(tensor.dtype) @ as_rows(rows)).reshape(tensor.shape[1:])
    return sums


def clipped_sum(contributions: Tensors, clip_norm: float) -> dict[str, Tensor]:
    """Sum over records of the contributions, each clipped to L2 norm C across all tensors together."""
    return weighted_sum(contributions, clip_factors(record_norms(contributions), clip_norm))

"""How far a candidate's gradient is from the observed one, with the derivative in closed form.

Each objective returns its value and its cotangents d(value)/d(gradient). Handing the cotangents to
one vector-Jacobian product replaces differentiation through the objective itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Gradients = Sequence[Tensor]
Objective = Callable[[Gradients, Gradients], tuple[Tensor, list[Tensor]]]
TINY = 1e-20


def _inner(a: Gradients, b: Gradients) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b)]).sum()


def cosine(candidate: Gradients, observed: Gradients) -> tuple[Tensor, list[Tensor]]:
    """1 - <g, t> / (|g| |t|) over the whole concatenation (Geiping et al. 2020, eq. 4)."""
    length = _inner(candidate, candidate).clamp_min(TINY).rsqrt()
    target = _inner(observed, observed).clamp_min(TINY).rsqrt()
    similarity = _inner(candidate, observed) * length * target
    pull, push = length * target, similarity * length**2
    return 1 - similarity, [push * g - pull * t for g, t in zip(candidate, observed)]


def squared(candidate: Gradients, observed: Gradients) -> tuple[Tensor, list[Tensor]]:
    """sum |g - t|^2 (Zhu et al. 2019, eq. 4)."""
    gaps = [g - t for g, t in zip(candidate, observed)]
    return _inner(gaps, gaps), [2 * gap for gap in gaps]


def layerwise(candidate: Gradients, observed: Gradients) -> tuple[Tensor, list[Tensor]]:
    """sum over layers of |g_l - t_l| (Yin et al. 2021, eq. 2)."""
    gaps = [g - t for g, t in zip(candidate, observed)]
    norms = [gap.square().sum().clamp_min(TINY).sqrt() for gap in gaps]
    return torch.stack(norms).sum(), [gap / norm for gap, norm in zip(gaps, norms)]


def absolute(candidate: Gradients, observed: Gradients) -> tuple[Tensor, list[Tensor]]:
    """sum |g - t|_1 / sum |t|_1 over the whole concatenation.

    Where a candidate image is near the record but some units of a ReLU network are on the wrong side, most entries of
    the gradient agree and a few are far off. Squares and angles chase those few; absolute values treat them as
    outliers.
    """
    gaps = [g - t for g, t in zip(candidate, observed)]
    size = torch.stack([t.abs().sum() for t in observed]).sum().clamp_min(TINY).reciprocal()
    return torch.stack([gap.abs().sum() for gap in gaps]).sum() * size, [gap.sign() * size for gap in gaps]


OBJECTIVES = {"cosine": cosine, "absolute": absolute}


def total_variation(images: Tensor) -> Tensor:
    """(..., h, w) -> (): mean |x_{w+1} - x_w| + mean |x_{h+1} - x_h| (anisotropic, no padding)."""
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()

"""The density attack that FedLGD ran: Gaussian kernel densities of members and of non-members.

Huang et al. (2024) estimate both densities on gradients of one model and call it LiRA; no shadow model
calibrates a record, so it is a global test: a record that is easy by nature counts as a member.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def density_ratio(inside: Tensor, outside: Tensor, query: Tensor, *, bandwidth: float | None = None) -> Tensor:
    """log p_in(q) - log p_out(q): (m,) float64, larger = member.

    inside (a, d), outside (b, d): features of known members and non-members; query (m, d). Each
    feature is scaled by its pooled standard deviation; ``bandwidth`` (in these units, > 0) is
    Scott's rule, size^(-1/(d + 4)), where None. Constant features are left out; with none left, 0.
    """
    if len(inside) < 2 or len(outside) < 2 or not inside.shape[1:] == outside.shape[1:] == query.shape[1:]:
        raise ValueError(f"inside {tuple(inside.shape)}, outside {tuple(outside.shape)}, query {tuple(query.shape)}")
    if bandwidth is not None and not bandwidth > 0:
        raise ValueError(f"bandwidth={bandwidth}: a positive number, or None for Scott's rule")
    spread = torch.cat([inside, outside]).double().std(0)
    live = spread > 0
    if not live.any():
        return torch.zeros(len(query), dtype=torch.float64)
    a, b, q = (v.double()[:, live] / spread[live] for v in (inside, outside, query))
    return _log_density(a, q, bandwidth) - _log_density(b, q, bandwidth)


def gradient_features(gradients: Tensor, components: int = 4) -> Tensor:
    """Per-record gradients (n, p) -> (n, 1 + components): log norm and leading principal scores (float64)."""
    if not 0 <= components <= min(gradients.shape):
        raise ValueError(f"components={components}: at most {min(gradients.shape)} here")
    g = gradients.double()
    norm = g.norm(dim=1, keepdim=True).clamp_min(1e-12).log()
    u, s, _ = torch.linalg.svd(g - g.mean(0), full_matrices=False)
    return torch.cat([norm, u[:, :components] * s[:components]], 1)


def _log_density(points: Tensor, query: Tensor, bandwidth: float | None) -> Tensor:
    """Log of the Gaussian kernel density of ``points`` (a, d) at ``query`` (m, d), in blocks of queries."""
    count, width = points.shape
    h = bandwidth if bandwidth is not None else count ** (-1 / (width + 4))
    level = math.log(count) + width * math.log(h * math.sqrt(2 * math.pi))
    squares = (torch.cdist(block, points).square() for block in query.split(4096))
    return torch.cat([(d / (-2 * h * h)).logsumexp(1) for d in squares]) - level

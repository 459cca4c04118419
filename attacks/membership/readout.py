"""Membership signals from a synthetic set: a model trained on it, class means, the nearest example.

From an empty set every record gets the same finite number.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.arrays import arrays
from attacks.membership.signals import nearest_distance

RIDGE = 1e-2  # of the linear readout that stands for "a model trained on the shared synthetic set"


@arrays
def class_means(embeddings: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(C, d); zero for a class without examples."""
    one_hot = F.one_hot(labels.long(), classes).to(embeddings)
    return (one_hot.T @ embeddings) / one_hot.sum(0).clamp_min(1)[:, None]


@arrays
def readout(inside: Tensor, labels: Tensor, own: Tensor, classes: int) -> Tensor:
    """Ridge regression of one-hot ``labels`` (m,) on ``inside`` (m, d), in closed form: (n, C) logits for ``own``.

    Zeros where m = 0: a model that was trained on nothing prefers no class.
    """
    if not len(inside):
        return own.new_zeros(len(own), classes)
    scale = inside.square().sum(1).mean().clamp_min(1e-12)
    kernel = inside @ inside.T / scale + RIDGE * len(inside) ** 0.5 * torch.eye(len(inside), device=inside.device)
    targets = F.one_hot(labels.long(), classes).to(kernel.dtype) - 1 / classes
    return 10 * (own @ inside.T / scale) @ torch.linalg.solve(kernel, targets)


@arrays
def nearest(records: Tensor, synthetic: Tensor, farthest: float) -> Tensor:
    """(n,) minus the distance of each record to the nearest of ``synthetic``; minus ``farthest`` where it is empty."""
    return nearest_distance(records, synthetic) if len(synthetic) else records.new_full((len(records),), -farthest)

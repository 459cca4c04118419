"""Images whose gradients of a linear head are those that were released while the head was trained.

Gradients are all that clients send about their records in the head's own map, once a round, each time with new noise. Images
that explain them in all rounds at once look to the map like the records of their class, and more so like those near other
classes (gradient matching: Zhao, Mopuri and Bilen, ICLR 2021; with noised gradients Chen, Kerkouche and Fritz, NeurIPS
2022). Nothing here reads a record: it is post-processing of what was released.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from privdd.distillation.fitting import TINY, Fitting, adam, variation
from privdd.distillation.networks import Embed

FEWEST = 1.0  # a class weighs at least as much as one record
STEEP = 1e6  # slopes are small numbers, and Adam adds a constant to their size


@dataclass(frozen=True)
class Path:
    """Of T rounds: weights (T, C, d), at which mean gradients over all records (T, C, d) were released; count (C,): of
    records by class, noised; longest: to which each record's gradient was shortened (None: it was not)."""

    weights: Tensor
    gradients: Tensor
    count: Tensor
    longest: float | None

    def of(self, rows: Tensor, y: Tensor) -> Tensor:
        """The mean gradients (T, C, d) that rows (n, d) of classes y (n,) have, each class weighing what it has records."""
        classes, y = self.weights.shape[1], y.to(rows.device)
        share = self.count.clamp_min(FEWEST).to(rows) / torch.bincount(y, minlength=classes).clamp_min(1).to(rows)
        share = share[y] / share[y].sum()
        guess = torch.softmax(torch.einsum("tcd,nd->tnc", self.weights.to(rows), rows), 2)
        residual = guess - F.one_hot(y, classes).to(rows)
        if self.longest is not None:
            norm = residual.norm(dim=2, keepdim=True) * rows.norm(dim=1)[:, None]
            residual = residual * (self.longest / norm.clamp_min(TINY)).clamp_max(1)
        return torch.einsum("tnc,nd->tcd", residual * share[:, None], rows)


def fitted(images: Tensor, y: Tensor, rows: Embed, path: Path, settings: Fitting) -> Tensor:
    """Images (n, c, h, w) in [0, 1] of classes y (n,), all of them together moved until their rows' gradients approach
    the path's: Adam on the squared distance, mean over rounds, and the images' mean total variation.

    rows: images -> (n, d).
    """
    target = path.gradients.to(images)

    def slope(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_(True)
        with torch.enable_grad():
            miss = (path.of(rows(leaf), y) - target).square().sum((1, 2)).mean()
            (found,) = torch.autograd.grad(miss + settings.smoothness * variation(leaf).mean(), leaf)
        return found * STEEP

    return adam(images, slope, settings.steps, settings.lr)

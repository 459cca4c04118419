"""Fit images to mean embeddings that are already released: any number of steps at no privacy cost.

If the targets have a guarantee, all of this is post-processing. Unlike ``distribution_matching``, it reads no records:
one public map, one target a class, Adam (Kingma and Ba, ICLR 2015) with a cosine schedule, pixels in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.gpu import images_at_once
from attacks.ranges import check_counts, check_from_zero, check_positive
from privdd.core.long_loops import turns
from privdd.distillation.distribution_matching import CHUNK
from privdd.distillation.networks import Embed

BETAS, TINY = (0.9, 0.99), 1e-8


@dataclass(frozen=True)
class Fitting:
    """steps: of Adam; lr: largest step of a pixel, reached at the start and falling to 0; smoothness: weight
    of the total variation (mean over images of the summed differences of neighbouring pixels)."""

    steps: int = 100
    lr: float = 0.06
    smoothness: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "steps", under="fitting.")
        check_positive(self, "lr", under="fitting.")
        check_from_zero(self, "smoothness", under="fitting.")


def variation(images: Tensor) -> Tensor:
    """Total variation of every image: (b, c, h, w) -> (b,)."""
    down, right = images[..., 1:, :] - images[..., :-1, :], images[..., 1:] - images[..., :-1]
    return down.abs().sum((1, 2, 3)) + right.abs().sum((1, 2, 3))


def _slope(images: Tensor, targets: Tensor, embed: Embed, smoothness: float) -> Tensor:
    """Gradient of sum_m ||targets_m - mean_j embed(images_mj)||^2 + smoothness mean_j variation(images_mj)."""
    leaf = images.detach().requires_grad_(True)
    flat = leaf.flatten(0, 1)
    loss = (embed(flat).unflatten(0, leaf.shape[:2]).mean(1) - targets).square().sum()
    if smoothness:
        loss = loss + smoothness * variation(flat).sum() / leaf.shape[1]
    return torch.autograd.grad(loss, leaf)[0]


def fit(images: Tensor, targets: Tensor, embed: Embed, settings: Fitting, *, chunk: int = CHUNK) -> Tensor:
    """Images (M, ipc, c, h, w) in [0, 1] whose mean embeddings approach targets (M, p); classes are independent."""
    if not len(images):
        return images
    size = max(1, images_at_once(images, chunk, CHUNK) // images.shape[1])
    return torch.cat([_fit(x, t, embed, settings) for x, t in zip(images.split(size), targets.split(size))])


def _fit(images: Tensor, targets: Tensor, embed: Embed, settings: Fitting) -> Tensor:
    def slope(x: Tensor) -> Tensor:
        return _slope(x, targets, embed, settings.smoothness)

    return adam(images.clamp(0, 1), slope, settings.steps, settings.lr)


def adam(images: Tensor, slope: Callable[[Tensor], Tensor], steps: int, lr: float) -> Tensor:
    """Images in [0, 1] after ``steps`` of Adam against ``slope``; the rate falls from lr to 0 along half a cosine."""
    mean, square, (slow, slower) = torch.zeros_like(images), torch.zeros_like(images), BETAS
    for t in turns(range(1, steps + 1)):
        gradient = slope(images)
        mean = slow * mean + (1 - slow) * gradient
        square = slower * square + (1 - slower) * gradient.square()
        rate = lr * (1 + math.cos(math.pi * (t - 1) / steps)) / 2
        move = (mean / (1 - slow**t)) / ((square / (1 - slower**t)).sqrt() + TINY)
        images = (images - rate * move).clamp(0, 1)
    return images

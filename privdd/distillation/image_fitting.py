"""Images fitted to what is already released, mean embeddings or gradients: any number of steps at no privacy cost.

Unlike ``distribution_matching`` this reads no records: it is post-processing. Targets are one mean embedding a class in one
public map, or the gradients of a linear head that clients sent, once a round, each time with new noise: images that explain
these in all rounds at once look to the map like the records of their class, and more so like those near other classes
(gradient matching: Zhao, Mopuri and Bilen, ICLR 2021; with noised gradients Chen, Kerkouche and Fritz, NeurIPS 2022). Adam
(Kingma and Ba, ICLR 2015) with a cosine schedule, pixels in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.validation import check_counts, check_non_negative, check_positive
from privdd.core.device import max_images_per_batch
from privdd.core.loop_timing import timed_steps
from privdd.distillation.distribution_matching import CHUNK, Embed

BETAS, TINY = (0.9, 0.99), 1e-8


@dataclass(frozen=True)
class FittingSettings:
    """steps: of Adam; lr: largest step of a pixel, reached at the start and falling to 0; smoothness: weight
    of the total variation (mean over images of the summed differences of neighbouring pixels)."""

    steps: int = 100
    lr: float = 0.06
    smoothness: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "steps", under="fitting.")
        check_positive(self, "lr", under="fitting.")
        check_non_negative(self, "smoothness", under="fitting.")


def total_variation(images: Tensor) -> Tensor:
    """Total variation of every image: (b, c, h, w) -> (b,)."""
    down, right = images[..., 1:, :] - images[..., :-1, :], images[..., 1:] - images[..., :-1]
    return down.abs().sum((1, 2, 3)) + right.abs().sum((1, 2, 3))


def _fitting_gradient(images: Tensor, targets: Tensor, embed: Embed, smoothness: float) -> Tensor:
    """Gradient of sum_m ||targets_m - mean_j embed(images_mj)||^2 + smoothness mean_j variation(images_mj)."""
    leaf = images.detach().requires_grad_(True)
    flat = leaf.flatten(0, 1)
    loss = (embed(flat).unflatten(0, leaf.shape[:2]).mean(1) - targets).square().sum()
    if smoothness:
        loss = loss + smoothness * total_variation(flat).sum() / leaf.shape[1]
    return torch.autograd.grad(loss, leaf)[0]


def fit_to_embeddings(
    images: Tensor, targets: Tensor, embed: Embed, settings: FittingSettings, *, chunk: int = CHUNK
) -> Tensor:
    """Images (M, ipc, c, h, w) in [0, 1] whose mean embeddings approach targets (M, p); classes are independent."""
    if not len(images):
        return images
    size = max(1, max_images_per_batch(images, chunk, CHUNK) // images.shape[1])
    return torch.cat([_fit_part(x, t, embed, settings) for x, t in zip(images.split(size), targets.split(size))])


def _fit_part(images: Tensor, targets: Tensor, embed: Embed, settings: FittingSettings) -> Tensor:
    def gradient_at(x: Tensor) -> Tensor:
        return _fitting_gradient(x, targets, embed, settings.smoothness)

    return minimise_by_adam(images.clamp(0, 1), gradient_at, settings.steps, settings.lr)


def minimise_by_adam(images: Tensor, slope: Callable[[Tensor], Tensor], steps: int, lr: float) -> Tensor:
    """Images in [0, 1] after ``steps`` of Adam against ``slope``; the rate falls from lr to 0 along half a cosine."""
    mean, square, (slow, slower) = torch.zeros_like(images), torch.zeros_like(images), BETAS
    for t in timed_steps(range(1, steps + 1)):
        gradient = slope(images)
        mean = slow * mean + (1 - slow) * gradient
        square = slower * square + (1 - slower) * gradient.square()
        rate = lr * (1 + math.cos(math.pi * (t - 1) / steps)) / 2
        move = (mean / (1 - slow**t)) / ((square / (1 - slower**t)).sqrt() + TINY)
        images = (images - rate * move).clamp(0, 1)
    return images


MIN_CLASS_WEIGHT = 1.0  # a class weighs at least as much as one record
GRADIENT_SCALE = 1e6  # slopes are small numbers, and Adam adds a constant to their size


@dataclass(frozen=True)
class GradientPath:
    """Mean gradients over all records, released in T rounds.

    weights (T, C, d): those of each round; gradients (T, C, d): released at them; count (C,): records by class, noised;
    longest: the norm to which each record's gradient was clipped (None: it was not).
    """

    weights: Tensor
    gradients: Tensor
    count: Tensor
    longest: float | None

    def mean_gradients_of(self, rows: Tensor, y: Tensor) -> Tensor:
        """The mean gradients (T, C, d) that rows (n, d) of classes y (n,) have, each class weighing what it has records."""
        classes, y = self.weights.shape[1], y.to(rows.device)
        share = self.count.clamp_min(MIN_CLASS_WEIGHT).to(rows) / torch.bincount(y, minlength=classes).clamp_min(1).to(
            rows
        )
        share = share[y] / share[y].sum()
        guess = torch.softmax(torch.einsum("tcd,nd->tnc", self.weights.to(rows), rows), 2)
        residual = guess - F.one_hot(y, classes).to(rows)
        if self.longest is not None:
            norm = residual.norm(dim=2, keepdim=True) * rows.norm(dim=1)[:, None]
            residual = residual * (self.longest / norm.clamp_min(TINY)).clamp_max(1)
        return torch.einsum("tnc,nd->tcd", residual * share[:, None], rows)


def fit_to_gradients(images: Tensor, y: Tensor, rows: Embed, path: GradientPath, settings: FittingSettings) -> Tensor:
    """Images (n, c, h, w) in [0, 1] of classes y (n,), all of them together moved until their rows' gradients approach
    the path's: Adam on the squared distance, mean over rounds, and the images' mean total variation.

    rows: images -> (n, d).
    """
    target = path.gradients.to(images)

    def gradient_at(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_(True)
        with torch.enable_grad():
            miss = (path.mean_gradients_of(rows(leaf), y) - target).square().sum((1, 2)).mean()
            (found,) = torch.autograd.grad(miss + settings.smoothness * total_variation(leaf).mean(), leaf)
        return found * GRADIENT_SCALE

    return minimise_by_adam(images, gradient_at, settings.steps, settings.lr)

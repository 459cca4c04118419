"""Distribution matching: synthetic images whose mean embeddings follow those of the real records.

Zhao and Bilen, "Dataset Condensation with Distribution Matching" (WACV 2023). Per iteration one
network is drawn for all classes, real records are embedded without a graph, and the loss is
sum over classes of ||mean embedding of real - mean embedding of synthetic||^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.gpu import images_at_once
from attacks.ranges import check_below_one, check_counts, check_positive
from privdd.core.keys import Keys
from privdd.core.long_loops import turns
from privdd.distillation.augmentation import Transform, draw, operations
from privdd.distillation.class_subsets import Cells
from privdd.distillation.networks import CHUNK, Embed, Networks, embedded, in_turn
from privdd.distillation.real_batches import Batch, real_batches

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Matching:
    """Settings of one matching run.

    iterations: steps on the images; batch: real records per class and step; lr, momentum: SGD on
    the images; augment: a siamese strategy or "none"; augment_synthetic: False transforms the real
    records only (FedRD); chunk: images per forward pass, 0 = all at once (batch norm needs that).
    """

    iterations: int
    batch: int = 256
    lr: float = 1.0
    momentum: float = 0.0
    augment: str = "none"
    augment_synthetic: bool = True
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        check_counts(self, "batch")
        check_counts(self, "iterations", "chunk", least=0)
        check_positive(self, "lr")
        check_below_one(self, "momentum")
        operations(self.augment)


@dataclass(frozen=True)
class Streams:
    """Random streams of one run: real batches (secret) and transforms (public)."""

    batch: Keys
    augment: Keys


def matching_gradient(images: Tensor, targets: Tensor, embed: Embed, *, chunk: int = CHUNK) -> Tensor:
    """Gradient of sum_m ||targets_m - mean_j embed(images_mj)||^2 with respect to the images.

    images (M, ipc, c, h, w), targets (M, p) -> (M, ipc, c, h, w). Cells go through the network in
    groups of about ``chunk`` images: only one group's graph is alive at a time.
    """
    together = images_at_once(images, chunk, CHUNK)
    size = max(1, together // images.shape[1]) if together else max(len(images), 1)
    parts = []
    for part, target in zip(images.split(size), targets.split(size)):
        part = part.detach().requires_grad_(True)
        means = embed(part.flatten(0, 1)).unflatten(0, part.shape[:2]).mean(1)
        parts.append(torch.autograd.grad((target - means).square().sum(), part)[0])
    return torch.cat(parts)


def real_means(
    batch: Batch, cells: Cells, embed: Embed, transform: Transform, settings: Matching, real_map: Embed | None = None
) -> Tensor:
    """Mean embedding of one batch of every cell, (M, p): each record is embedded once for all cells.

    real_map: applied to a record between ``transform`` and the network (FedRD's projection).
    """
    x = transform(cells.pool.x[batch.at])
    whole: Embed = embed if real_map is None else lambda part: embed(real_map(part))
    embeddings = embedded(whole, x, settings.chunk).split([rows.shape[1] for rows in batch.taken])
    weights = [rows.to(e) for rows, e in zip(batch.taken, embeddings)]
    return torch.cat([w @ e / w.sum(1, keepdim=True) for w, e in zip(weights, embeddings)])


def descend(images: Tensor, velocity: Tensor, gradient: Tensor, settings: Matching) -> tuple[Tensor, Tensor]:
    """One step of SGD with momentum: (images, velocity)."""
    velocity = settings.momentum * velocity + gradient
    return images - settings.lr * velocity, velocity


def match(
    cells: Cells,
    images: Tensor,
    networks: Networks,
    settings: Matching,
    streams: Streams,
    *,
    real_map: Embed | None = None,
) -> Tensor:
    """Learn the images of every cell: (M, ipc, c, h, w) -> the same shape.

    Works for one client or for many replays of it (``cells``): the real records are embedded once for all.
    """
    velocity, steps = torch.zeros_like(images), settings.iterations if len(cells) else 0
    batches = real_batches(cells, settings.batch, streams.batch.fold, steps)
    for t, embed, batch in zip(turns(range(steps)), in_turn(networks, steps), batches):
        transform = draw(settings.augment, tuple(images.shape[2:]), streams.augment.fold(t).torch())  # type: ignore[arg-type]
        targets = real_means(batch, cells, embed, transform, settings, real_map)
        gradient = matching_gradient(images, targets, _siamese(embed, transform, settings), chunk=settings.chunk)
        images, velocity = descend(images, velocity, gradient, settings)
    return images


def _siamese(embed: Embed, transform: Transform, settings: Matching) -> Embed:
    return (lambda x: embed(transform(x))) if settings.augment_synthetic else embed

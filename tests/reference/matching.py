"""Distribution matching of one client's images: the loop that FedDM, FedRD and FedLGD share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privdd.core.rng import Keys
from privdd.core.types import Records
from tests.reference.draws import augmentation, priorities

Embed = Callable[[Tensor], Tensor]


def classes_of(records: Records) -> list[tuple[int, Tensor]]:
    """Each held class with the positions of its records."""
    return [(c, (records.y == c).nonzero()[:, 0]) for c in records.y.unique().tolist()]


def smallest(records: Records, keys: Keys, count: int) -> list[Tensor]:
    """Of each class the ``count`` records that the stack would draw: those of smallest priority."""
    priority = priorities(records.ids, keys)
    return [at[priority[at].argsort()[:count]] for _, at in classes_of(records)]


def real_start(records: Records, keys: Keys, count: int) -> Tensor:
    """Images (C, count, c, h, w): the first records of each class, starting over where it has
    fewer."""
    chosen = smallest(records, keys.fold("real"), count)
    return torch.stack([records.x[at[torch.arange(count) % len(at)]] for at in chosen])


def labels(records: Records, count: int) -> Tensor:
    """Each held class ``count`` times."""
    return torch.tensor([c for c, _ in classes_of(records)]).repeat_interleave(count)


def distil(
    settings: Any,
    images: Tensor,
    records: Records,
    embed_at: Callable[[int], Embed],
    batches: Keys,
    transforms: Keys,
    project: Embed = lambda x: x,
) -> Tensor:
    """Images (C, ipc, ...) whose mean embeddings follow those of the records, class by class.

    embed_at: step -> network; project: what real records pass through between transform and
        network."""
    images = images.clone().requires_grad_(True)
    optimiser = torch.optim.SGD([images], lr=settings.lr, momentum=settings.momentum)
    chunk = settings.chunk or 10**9
    cells = max(1, chunk // images.shape[1])
    for i in range(settings.iterations):
        embed = embed_at(i)
        transform = augmentation(settings.augment, images.shape[2:], transforms.fold(i).torch())
        picks = smallest(records, batches.fold(i), settings.batch)
        with torch.no_grad():
            real = transform(records.x[torch.cat(picks)])
            real = torch.cat([embed(project(part)) for part in real.split(chunk)])
            means = torch.stack([part.mean(0) for part in real.split([len(at) for at in picks])])
        optimiser.zero_grad()
        for part, target in zip(images.split(cells), means.split(cells)):
            x = part.flatten(0, 1)
            own = (
                embed(transform(x) if settings.augment_synthetic else x)
                .unflatten(0, part.shape[:2])
                .mean(1)
            )
            (own - target).square().sum().backward()
        optimiser.step()
    return images.detach()

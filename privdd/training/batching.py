"""Which records a step of local training sees: a client's own, and a batch of shared ones in the same forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privdd.core.packed import packed
from privdd.core.types import Records


def batches(
    n: int, batch_size: int, generator: torch.Generator, device: torch.device, steps: int | None = None
) -> Iterator[Tensor]:
    """Index batches: a fresh permutation each pass, the last batch of a pass may be smaller.

    steps: how many are wanted, if known (None: endless): the permutations of many passes then travel to a GPU together.
    They are the same ones, and so is the generator after that many steps.
    """
    while steps is None or device.type == "cpu":
        yield from torch.randperm(n, generator=generator).to(device).split(batch_size)
    passes = -(-steps // -(-n // batch_size))
    for drawn in packed(lambda _: {"order": torch.randperm(n, generator=generator)}, passes, device):
        yield from drawn["order"].split(batch_size)


def balanced_draw(y: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """``size`` indices into labels y (n,), in random order: equally many of every class that occurs.

    size // C of each of the C classes, without replacement where a class has that many, and the rest
    uniformly from all (the released code of FedFed).
    """
    labels = y.cpu()
    rows = [(labels == c).nonzero()[:, 0] for c in labels.unique()]
    each = size // len(rows)
    parts = [
        own[torch.randperm(len(own), generator=generator)[:each]]
        if len(own) >= each
        else own[torch.randint(len(own), (each,), generator=generator)]
        for own in rows
    ]
    parts.append(torch.randint(len(labels), (size - each * len(rows),), generator=generator))
    drawn = torch.cat(parts)
    return drawn[torch.randperm(size, generator=generator)].to(y.device)


@dataclass(frozen=True)
class Mix:
    """A second labelled set that joins every step with its own batch, e.g. FedFed's shared features.

    The step's loss becomes ``loss(private) + weight * cross-entropy(batch of records)``, both from one
    forward pass: batch norm sees the two batches as one. The second set has draws of its own, so the
    private batches stay what they were without it: permutations of all of it, or, with ``balanced``,
    passes of so many records with equally many of every class.
    """

    records: Records
    generator: torch.Generator
    batch_size: int
    weight: float = 1.0
    balanced: int | None = None

    def indices(self, device: torch.device) -> Iterator[Tensor]:
        """Endless index batches into ``records``."""
        if self.balanced is None:
            yield from batches(len(self.records), self.batch_size, self.generator, device)
        y = self.records.y
        while True:
            yield from balanced_draw(y, self.balanced or len(y), self.generator).to(device).split(self.batch_size)


class Joined:
    """A classifier whose first forward pass of a step takes a shared batch along with the private one.

    It stands in for the network in a local loss: ``features`` and the call return the private images'
    values; the shared images' features wait in ``shared``. Later passes of the step see private images alone.
    """

    def __init__(self, net: Any) -> None:
        self.net, self.head = net, net.head
        self.waiting: Tensor | None = None
        self.shared: Tensor | None = None

    def step(self, x: Tensor) -> None:
        """The next first pass takes images x (b, c, h, w) along."""
        self.waiting, self.shared = x, None

    def features(self, x: Tensor) -> Tensor:
        if self.waiting is None:
            return self.net.features(x)
        extra, self.waiting = self.waiting, None
        own, self.shared = self.net.features(torch.cat([x, extra])).split([len(x), len(extra)])
        return own

    def logits(self) -> Tensor:
        """Of the shared batch (b, C); in a pass of their own where the loss made none."""
        if self.shared is None and self.waiting is not None:
            self.waiting, self.shared = None, self.net.features(self.waiting)
        return self.head(self.shared)

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

"""Naive reconstructions that need no attack, and whether an image identifies its record in a gallery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.arrays import arrays
from attacks.images import negative_mse


@arrays
def class_means(x: Tensor, y: Tensor, classes: int) -> Tensor:
    """(classes, c, h, w) mean image of each class; a class without records gets the mean of all."""
    rows = [x[y == c].mean(0) if bool((y == c).any()) else x.mean(0) for c in range(classes)]
    return torch.stack(rows)


@arrays
def guesses(truth_y: Tensor, public_x: Tensor, public_y: Tensor, generator: torch.Generator) -> Mapping[str, Tensor]:
    """The four reconstructions that need no attack, (n, c, h, w) each, from public records and labels.

    black; mean of the public data; mean of the record's class; a random public record of the class.
    """
    classes = int(torch.cat([truth_y, public_y]).max()) + 1
    means = class_means(public_x, public_y, classes)
    n = len(truth_y)
    return {
        "black": torch.zeros((n, *public_x.shape[1:])).to(public_x),
        "mean": public_x.mean(0).expand(n, *public_x.shape[1:]),
        "class_mean": means[truth_y],
        "random_same_class": torch.stack([_same_class(int(y), public_x, public_y, generator) for y in truth_y]),
    }


def _same_class(label: int, public_x: Tensor, public_y: Tensor, generator: torch.Generator) -> Tensor:
    pool = torch.nonzero(public_y == label).flatten()
    pool = pool if len(pool) else torch.arange(len(public_y))
    return public_x[pool[int(torch.randint(len(pool), (1,), generator=generator))]]


@dataclass(frozen=True)
class Identification:
    """Ranks (n,) from 1 in a gallery of ``size``; chance: expected top-1 rate of a blind guess."""

    ranks: Tensor
    size: int

    @property
    def chance(self) -> float:
        return 1 / self.size

    def top(self, k: int) -> float:
        """Share of reconstructions whose record is among the k nearest."""
        return float((self.ranks <= k).double().mean())

    @property
    def median(self) -> float:
        return float(self.ranks.double().median())


@arrays
def identify(reconstructions: Tensor, truth: Tensor, others: Tensor) -> Identification:
    """Rank of each record among itself and ``others`` by pixel distance to its reconstruction.

    reconstructions, truth: (n, c, h, w) in step; others: (m, c, h, w), records that are none of
    the truth. Each reconstruction has a gallery of its own record and the others: size m + 1. A
    tie counts against the attacker.
    """
    own = negative_mse(reconstructions, truth).diagonal()
    rivals = negative_mse(reconstructions, others)
    return Identification(1 + (rivals >= own.unsqueeze(1)).sum(1), len(others) + 1)

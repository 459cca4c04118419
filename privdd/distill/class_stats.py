"""Channel means and deviations of each class: a start for virtual data, and a release where sent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privdd.core import Records


@dataclass(frozen=True)
class Statistics:
    """mean (C, c) and std (C, c) of the pixel values of each class and channel."""

    mean: Tensor
    std: Tensor

    def __post_init__(self) -> None:
        if self.mean.ndim != 2 or self.mean.shape != self.std.shape:
            raise ValueError(
                f"statistics need mean and std of one shape (C, c); got {self.mean.shape}, {self.std.shape}"
            )


def channel_statistics(x: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """Mean and deviation over images and pixels of x (n, c, h, w): two tensors (c,).

    total: divide the sums by this many images instead of n. That is what FedLGD's published code
    does with the client's whole number of images: the values then scale with the class's share.
    """
    pixels = max(len(x) if total is None else total, 1) * x.shape[2] * x.shape[3]
    mean = x.sum((0, 2, 3), dtype=torch.float64) / pixels
    square = x.square().sum((0, 2, 3), dtype=torch.float64) / pixels
    return mean.to(x), (square - mean.square()).clamp_min(0).sqrt().to(x)


def class_statistics(records: Records, classes: int, *, released: bool = False) -> Statistics:
    """Statistics of every class; a class without records has mean 0 and deviation 0.

    released: divide by the client's total, as the published code does.
    """
    total = len(records) if released else None
    rows = [channel_statistics(records.x[records.y == label], total) for label in range(classes)]
    return Statistics(torch.stack([mean for mean, _ in rows]), torch.stack([std for _, std in rows]))

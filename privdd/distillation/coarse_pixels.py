"""The coarse look of an image: its lowest cosine frequencies. A public linear map that can be turned back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.ranges import check_counts

GREY = 0.35  # from where pixels are counted


@dataclass(frozen=True)
class CoarsePixels:
    """Images (b, c, h, w) in [0, 1] -> (b, p): orthonormal cosine transform (DCT-II) of pixels less ``GREY``, the
    lowest side x side frequencies of every channel, over sqrt(c h w). Its norm is at most the root mean square of the
    pixels' distance from ``GREY``, below 0.65. It depends on the image alone.
    """

    side: int = 12

    def __post_init__(self) -> None:
        check_counts(self, "side", under="looks.")

    def __call__(self, x: Tensor) -> Tensor:
        down, right = (_cosines(size, self.side).to(x) for size in x.shape[-2:])
        return (down @ (x - GREY) @ right.T).flatten(1) / math.sqrt(math.prod(x.shape[1:]))

    def images(self, looks: Tensor, shape: Sequence[int]) -> Tensor:
        """The smoothest images (b, c, h, w) that look so, cut to [0, 1]."""
        down, right = (_cosines(size, self.side).to(looks) for size in shape[-2:])
        waves = looks.reshape(len(looks), shape[0], len(down), len(right)) * math.sqrt(math.prod(shape))
        return (down.T @ waves @ right + GREY).clamp(0, 1)

    def bands(self, shape: Sequence[int]) -> Tensor:
        """The frequency of each number (p,), as a whole number: the distance from the lowest, rounded."""
        down, right = (torch.arange(min(size, self.side)) for size in shape[-2:])
        return (down[:, None] ** 2 + right**2).double().sqrt().round().long().repeat(shape[0], 1, 1).flatten()

    def among(self, finer: CoarsePixels, shape: Sequence[int]) -> Tensor:
        """Where the numbers of this map are among those of a finer one, (p,)."""
        down, right = (torch.arange(min(size, finer.side)) < self.side for size in shape[-2:])
        return (down[:, None] & right).repeat(shape[0], 1, 1).flatten().nonzero()[:, 0]


def _cosines(size: int, count: int) -> Tensor:
    """The ``count`` lowest cosines over ``size`` pixels, orthonormal rows (min(count, size), size)."""
    waves = torch.arange(min(count, size))[:, None] * (torch.arange(size) + 0.5) * math.pi / size
    rows = torch.cos(waves) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows

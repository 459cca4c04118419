"""Random cosine features (Rahimi and Recht 2007): a public map without pre-training or download."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from attacks.tensors import average_pool
from attacks.validation import check_counts, check_positive
from privdd.core.rng import Keys
from privdd.core.types import is_image


@dataclass(frozen=True)
class RandomCosine:
    """Images (b, ...), or rows (b, d), in [0, 1] -> (b, count), of norm at most sqrt(2), about 1.

        phi(x) = sqrt(2 / count) cos(W x + u)

    W is normal and u uniform, drawn once from a public stream. Then phi(x) . phi(y) is about
    exp(-d**2 / (2 scale**2)), d the root mean square distance of their pixels. A row depends on its
    image alone.

    Attributes:
        count: features of a row.
        scale: of the kernel, in the unit of pixel values.
        side: images are averaged over at most side x side places first; 0: not at all, as rows
            of a table.
    """

    count: int = 2000
    scale: float = 0.3
    side: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "count", under="extractor.")
        check_counts(self, "side", least=0, under="extractor.")
        check_positive(self, "scale", under="extractor.")

    def __call__(self, x: Tensor) -> Tensor:
        if self.side and is_image(x.shape[1:]):
            x = average_pool(x, min(self.side, *x.shape[-2:]))
        pixels = x.flatten(1)
        weight, shift = _draw_projection(pixels.shape[1], self.count)
        angle = pixels @ weight.to(x) / (self.scale * math.sqrt(pixels.shape[1])) + shift.to(x)
        return torch.cos(angle) * math.sqrt(2 / self.count)


@lru_cache(maxsize=8)
def _draw_projection(pixels: int, count: int) -> tuple[Tensor, Tensor]:
    """(W (pixels, count), u (count,)): public constants, the same in every run."""
    keys = Keys(0).fold("random cosine", pixels)
    weight = torch.randn(pixels, count, generator=keys.fold("weight").torch())
    shift = 2 * math.pi * torch.rand(count, generator=keys.fold("shift").torch())
    return weight, shift

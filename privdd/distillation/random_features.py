"""Random cosine features (Rahimi and Recht 2007): a public map that needs no pre-training and no download."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from attacks.ranges import check_counts, check_positive
from attacks.repeatable import average_pool
from privdd.core.keys import Keys


@dataclass(frozen=True)
class RandomCosine:
    """Images (b, c, h, w) in [0, 1] -> (b, count), each of norm at most sqrt(2) and about 1.

    phi(x) = sqrt(2 / count) cos(W x + u), W normal and u uniform, drawn once from a public stream. Then phi(x) . phi(y)
    is about exp(-d**2 / (2 scale**2)), d the root mean square distance of their pixels. side: images are
    averaged over at most side x side places first (0: not at all). A row depends on its image alone.
    """

    count: int = 2000
    scale: float = 0.3
    side: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "count", under="extractor.")
        check_counts(self, "side", least=0, under="extractor.")
        check_positive(self, "scale", under="extractor.")

    def __call__(self, x: Tensor) -> Tensor:
        x = average_pool(x, min(self.side, *x.shape[-2:])) if self.side else x
        flat = x.flatten(1)
        weight, shift = _drawn(flat.shape[1], self.count)
        angle = flat @ weight.to(x) / (self.scale * math.sqrt(flat.shape[1])) + shift.to(x)
        return torch.cos(angle) * math.sqrt(2 / self.count)


@lru_cache(maxsize=8)
def _drawn(pixels: int, count: int) -> tuple[Tensor, Tensor]:
    keys = Keys(0).fold("random cosine", pixels)
    weight = torch.randn(pixels, count, generator=keys.fold("weight").torch())
    return weight, 2 * math.pi * torch.rand(count, generator=keys.fold("shift").torch())

"""A data set out of noised class means and a noised head: images fitted, pushed, mixed, and labelled by the head.

Nothing here reads a record: if means and head have a guarantee, all of it is post-processing, and more images cost
no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from privdd.core.keys import Keys
from privdd.distillation.fitting import Fitting, adam, fit, variation
from privdd.distillation.initial_images import smooth_images
from privdd.distillation.networks import Embed, embedded

Score = Callable[[Tensor], Tensor]  # images (b, c, h, w) -> logits (b, C)


@dataclass(frozen=True)
class Guiding:
    """steps, lr: of Adam on every image by itself, towards the head's confidence in its class; smoothness: weight of its
    total variation; images: how many are released in the end; mixing: at most this share of a second image; moves:
    the largest shift, shear and change of scale, as a share of the image; temperature: the head's
    logits are multiplied by it before they become soft labels.
    """

    steps: int = 30
    lr: float = 0.03
    smoothness: float = 2e-3
    images: int = 4000
    mixing: float = 0.5
    moves: float = 0.15
    temperature: float = 1.5

    def __post_init__(self) -> None:
        for name, least in (("steps", 0), ("images", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not value >= least:
                raise ValueError(f"guiding.{name}={value!r}: an integer of at least {least} is needed")
        for name in ("lr", "temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"guiding.{name}={getattr(self, name)!r}: a finite number above 0 is needed")
        if not 0 <= self.smoothness < float("inf"):
            raise ValueError(f"guiding.smoothness={self.smoothness!r}: a finite number from 0 is needed")
        for name in ("mixing", "moves"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"guiding.{name}={getattr(self, name)!r}: a share in [0, 1] is needed")


def guided_set(
    targets: Tensor, see: Embed, score: Score, shape: tuple[int, int, int], ipc: int, fitting: Fitting,
    guiding: Guiding, keys: Keys,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(images (m, c, h, w) in [0, 1], the head's soft labels (m, C)).

    targets: mean embedding of every class in the map ``see``, (C, p); score: the head, as a function of images.
    The images are mixtures of ``ipc`` a class that were fitted to the means, of as many that were pushed from there to
    where the head is confident, and of as many that were pushed from smooth noise, moved about at random.
    """
    classes = torch.arange(len(targets))
    start = smooth_images(classes, ipc, shape, keys.fold("start"))
    fitted = fit(start, targets, see, fitting).flatten(0, 1)
    y = classes.repeat_interleave(ipc)
    fresh = smooth_images(classes, ipc, shape, keys.fold("fresh")).flatten(0, 1)
    pushed = pushed_apart(torch.cat([fitted, fresh]), y.repeat(2), score, guiding)
    pool = torch.cat([fitted, pushed])
    x = varied(pool, guiding, keys.fold("vary").torch())
    soft = torch.softmax(guiding.temperature * embedded(score, x), 1)
    return x, soft


def pushed_apart(images: Tensor, y: Tensor, score: Score, guiding: Guiding, chunk: int = 100) -> Tensor:
    """Each image (n, c, h, w) moved, by itself, to where the head gives its class y (n,)."""
    parts = zip(images.split(chunk), y.split(chunk))
    return torch.cat([_pushed(x, label, score, guiding) for x, label in parts])


def _pushed(x: Tensor, y: Tensor, score: Score, guiding: Guiding) -> Tensor:
    def slope(images: Tensor) -> Tensor:
        leaf = images.detach().requires_grad_(True)
        with torch.enable_grad():
            loss = F.cross_entropy(score(leaf), y, reduction="sum") + guiding.smoothness * variation(leaf).sum()
        return torch.autograd.grad(loss, leaf)[0]

    return adam(x, slope, guiding.steps, guiding.lr)


def varied(pool: Tensor, guiding: Guiding, generator: torch.Generator) -> Tensor:
    """``guiding.images`` random images (m, c, h, w): two of the pool mixed, and then moved about and dimmed."""
    m = guiding.images

    def drawn(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator).to(pool)

    first, second = (torch.randint(len(pool), (m,), generator=generator) for _ in range(2))
    part = guiding.mixing * drawn(m, 1, 1, 1)
    x = (1 - part) * pool[first] + part * pool[second]
    where = torch.eye(2, 3).repeat(m, 1, 1).to(pool) + guiding.moves * (2 * drawn(m, 2, 3) - 1)
    x = F.grid_sample(x, F.affine_grid(where, list(x.shape), align_corners=False), align_corners=False)
    return (x * (1 + 2 * guiding.moves * (2 * drawn(m, 1, 1, 1) - 1))).clamp(0, 1)

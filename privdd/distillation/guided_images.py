"""A data set out of a model of the classes and a head: images drawn, mixed and moved about, labelled by both.

Nothing here reads a record: if class model and head have a guarantee, all of it is post-processing, and more images cost
no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from privdd.core.keys import Keys
from privdd.distillation.class_model import ClassModel
from privdd.distillation.coarse_pixels import CoarsePixels
from privdd.distillation.networks import embedded

Score = Callable[[Tensor], Tensor]  # images (b, c, h, w) -> logits (b, C)


@dataclass(frozen=True)
class Guiding:
    """images: how many are released; mixing: at most this share of a second image; moves: the largest shift, shear and
    change of scale, as a share of the image; temperature: the head's logits are multiplied by it before they
    become labels; own: the share of a label that is the classes that an image was drawn from, the rest is the head's.
    """

    images: int = 4000
    mixing: float = 0.5
    moves: float = 0.08
    temperature: float = 0.75
    own: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.images, bool) or not isinstance(self.images, int) or not self.images >= 1:
            raise ValueError(f"guiding.images={self.images!r}: an integer of at least 1 is needed")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"guiding.temperature={self.temperature!r}: a finite number above 0 is needed")
        for name in ("mixing", "moves", "own"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"guiding.{name}={getattr(self, name)!r}: a share in [0, 1] is needed")


def guided_set(
    model: ClassModel, looks: CoarsePixels, score: Score, shape: tuple[int, int, int], guiding: Guiding, keys: Keys
) -> tuple[Tensor, Tensor]:
    """(images (m, c, h, w) in [0, 1], soft labels (m, C)): as many of each class, drawn from ``model`` in ``looks``."""
    classes = len(model.means)
    y = torch.arange(guiding.images) % classes
    pool = looks.images(model.drawn(y, keys.fold("draw").torch()), shape)
    x, own = varied(pool, F.one_hot(y, classes).to(pool), guiding, keys.fold("vary").torch())
    soft = torch.softmax(guiding.temperature * embedded(score, x), 1)
    return x, guiding.own * own + (1 - guiding.own) * soft


def varied(pool: Tensor, own: Tensor, guiding: Guiding, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``guiding.images`` random images (m, c, h, w): two of the pool mixed, and then moved about and dimmed.

    own: labels (n, C) of the pool; those of the images are mixed alike.
    """
    m = guiding.images

    def drawn(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator).to(pool)

    first, second = (torch.randint(len(pool), (m,), generator=generator) for _ in range(2))
    part = guiding.mixing * drawn(m, 1, 1, 1)
    x = (1 - part) * pool[first] + part * pool[second]
    where = torch.eye(2, 3).repeat(m, 1, 1).to(pool) + guiding.moves * (2 * drawn(m, 2, 3) - 1)
    x = F.grid_sample(x, F.affine_grid(where, list(x.shape), align_corners=False), align_corners=False)
    x = (x * (1 + 2 * guiding.moves * (2 * drawn(m, 1, 1, 1) - 1))).clamp(0, 1)
    share = part.flatten(1)
    return x, (1 - share) * own[first] + share * own[second]

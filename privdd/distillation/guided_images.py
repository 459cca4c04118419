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

SCALES = (14, 7, 4, 2)  # pixels between two knots of a texture
Score = Callable[[Tensor], Tensor]  # images (b, c, h, w) -> logits (b, C)


@dataclass(frozen=True)
class Guiding:
    """images: how many are released; mixing: at most this share of a second image; moves: the largest shift, shear and
    change of scale, as a share of the image; temperature: the head's logits are multiplied by it before they
    become labels; own: the share of a label that is the classes that an image was drawn from, the rest is the head's,
    for a head that nothing is known of; texture: of noise of several scales that is laid over images, for a head
    that is sure of itself, which then labels what no class looks like as well.
    """

    images: int = 4000
    mixing: float = 0.5
    moves: float = 0.08
    temperature: float = 0.75
    own: float = 0.8
    texture: float = 0.6

    def __post_init__(self) -> None:
        if isinstance(self.images, bool) or not isinstance(self.images, int) or not self.images >= 1:
            raise ValueError(f"guiding.images={self.images!r}: an integer of at least 1 is needed")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"guiding.temperature={self.temperature!r}: a finite number above 0 is needed")
        for name in ("mixing", "moves", "own", "texture"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"guiding.{name}={getattr(self, name)!r}: a share in [0, 1] is needed")


def guided_set(
    model: ClassModel, looks: CoarsePixels, score: Score, shape: tuple[int, int, int], guiding: Guiding, keys: Keys,
    sure: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(images (m, c, h, w) in [0, 1], soft labels (m, C)): as many of each class, drawn from ``model`` in ``looks``.

    sure: how far the head is to be trusted, in [0, 1], by what is known of its noise. A noisy head says much that
    is wrong of images that are unlike the records', so then there are few of them, and classes count more.
    """
    classes = len(model.means)
    y = torch.arange(guiding.images) % classes
    pool = looks.images(model.drawn(y, keys.fold("draw").torch()), shape)
    x, own = varied(pool, F.one_hot(y, classes).to(pool), guiding, keys.fold("vary").torch())
    x = textured(x, guiding.texture * sure**3, keys.fold("texture").torch())
    soft, share = torch.softmax(guiding.temperature * embedded(score, x), 1), guiding.own * (1 - sure)
    return x, share * own + (1 - share) * soft


def textured(images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Images (m, c, h, w) under noise of one of several scales each, of standard deviation up to ``amount``."""
    size, out = images.shape[-2:], images.clone()
    scale = torch.randint(len(SCALES), (len(images),), generator=generator)
    for at, parts in ((scale == k, parts) for k, parts in enumerate(SCALES)):
        knots = [max(2, side // parts + 1) for side in size]
        drawn = torch.randn(int(at.sum()), images.shape[1], *knots, generator=generator)
        much = amount * torch.rand(len(drawn), 1, 1, 1, generator=generator)
        out[at] += (much * F.interpolate(drawn, size=size, mode="bicubic", align_corners=False)).to(out)
    return out.clamp(0, 1)


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

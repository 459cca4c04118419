"""A data set out of a model of the classes and a head: images drawn, pushed, mixed and moved about, labelled by the head.

Nothing here reads a record: if class model and head have a guarantee, all of it is post-processing, and more images cost
no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.ranges import check_counts, check_positive
from privdd.core.keys import Keys
from privdd.distillation.class_model import ClassModel
from privdd.distillation.coarse_pixels import CoarsePixels
from privdd.distillation.fitting import Fitting
from privdd.distillation.networks import embedded
from privdd.distillation.pushed_images import pushed

SCALES = (14, 7, 4, 2)  # pixels between two knots of a texture
BLENDED = 0.25  # the largest share of a second drawing in an image before it is pushed
FAINT = 0.3  # the strongest texture on an image before it is pushed
CLEAN = 0.4  # of the released images: without a texture
STEEP = 12.0  # of the edge of a silhouette: how fast it falls off along the drawing's brightness
Score = Callable[[Tensor], Tensor]  # images (b, c, h, w) -> logits (b, C)
Fit = Callable[[Tensor, Tensor], Tensor]  # images (b, c, h, w) and their classes (b,) -> images


@dataclass(frozen=True)
class Guiding:
    """images: how many are released; drawn: how many they are mixed from, each pushed by itself in ``steps`` steps
    of ``rate`` (``pushed``) to where the head gives it its class; fitted: further ones, which are fitted to what was
    released by ``fitting`` first, and are mixed both as they then are and pushed; mixing: at most this share of a second image;
    moves: the largest shift, shear and change of scale, as a share of the image; temperature: the head's
    logits are multiplied by it before they become labels; texture: of noise of several scales that is
    laid over most images, so that the head labels what no class looks like as well.
    """

    images: int = 4000
    drawn: int = 400
    fitted: int = 0
    fitting: Fitting = field(default_factory=lambda: Fitting(steps=60, lr=0.06, smoothness=1e-7))
    steps: int = 12
    rate: float = 0.06
    mixing: float = 0.5
    moves: float = 0.08
    temperature: float = 0.75
    texture: float = 0.6

    def __post_init__(self) -> None:
        check_counts(self, "images", "drawn", under="guiding.")
        check_counts(self, "fitted", "steps", least=0, under="guiding.")
        check_positive(self, "temperature", under="guiding.")
        for name in ("rate", "mixing", "moves", "texture"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"guiding.{name}={getattr(self, name)!r}: a share in [0, 1] is needed")


def guided_set(
    model: ClassModel,
    looks: CoarsePixels,
    score: Score,
    shape: tuple[int, int, int],
    guiding: Guiding,
    keys: Keys,
    fit: Fit | None = None,
) -> tuple[Tensor, Tensor]:
    """(images (m, c, h, w) in [0, 1], the head's soft labels (m, C)), of as many drawings of each class.

    fit: what fits images to the released gradients; None: no images are fitted.
    """

    def scaled(x: Tensor) -> Tensor:
        return guiding.temperature * score(x)

    def started(count: int, keys: Keys) -> tuple[Tensor, Tensor]:
        y = torch.arange(count) % len(model.means)
        return drawings(looks.images(model.drawn(y, keys.fold("draw").torch()), shape), guiding, keys.fold("start")), y

    start, y = started(guiding.drawn, keys)
    pool = pushed(start, y, scaled, guiding.steps, guiding.rate, keys.fold("push"))
    if fit and guiding.fitted:
        start, y = started(guiding.fitted, keys.fold("fit"))
        known = fit(start, y)
        pool = torch.cat([pool, known, pushed(known, y, scaled, guiding.steps, guiding.rate, keys.fold("push fit"))])
    x = varied(pool, guiding.images, guiding.mixing, guiding.moves, keys.fold("vary").torch())
    clean = int(CLEAN * len(x))  # which are in no order
    x = torch.cat([x[:clean], textured(x[clean:], guiding.texture, keys.fold("texture").torch())])
    return x, torch.softmax(embedded(scaled, x), 1)


def drawings(pool: Tensor, guiding: Guiding, keys: Keys) -> Tensor:
    """What is pushed: of the pool's images (n, c, h, w), each blended with a little of another and moved about; about
    half of them under a faint texture, and of the others the bright part alone, with an edge and a texture of its own."""
    x = varied(pool, None, BLENDED, guiding.moves, keys.fold("vary").torch())
    rough = textured(x, FAINT, keys.fold("faint").torch())
    which = torch.rand(len(x), 1, 1, 1, generator=keys.fold("which").torch()).to(x)
    return torch.where(which < 0.5, rough, silhouettes(x, keys.fold("silhouette").torch()))


def silhouettes(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images (n, c, h, w) whose part above a random brightness stays, with a sharp edge and some texture inside."""
    fill = textured(torch.full_like(images, 0.5), 2 * FAINT, generator)
    edge, share = (torch.rand(len(images), 1, 1, 1, generator=generator).to(images) for _ in range(2))
    inside = torch.sigmoid(STEEP * (images - 0.1 - 0.3 * edge))
    share = 0.8 * share
    return (inside * ((1 - share) * (0.5 * images + 0.4) + share * fill)).clamp(0, 1)


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


def varied(pool: Tensor, count: int | None, mixing: float, moves: float, generator: torch.Generator) -> Tensor:
    """``count`` images (m, c, h, w) of a pool (n, c, h, w), mixed with up to ``mixing`` of another, moved and dimmed.

    Which ones is random; None: each one once, in its place.
    """
    m = len(pool) if count is None else count

    def drawn(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator).to(pool)

    first, second = (torch.randint(len(pool), (m,), generator=generator) for _ in range(2))
    part = mixing * drawn(m, 1, 1, 1)
    x = (1 - part) * (pool if count is None else pool[first]) + part * pool[second]
    where = torch.eye(2, 3).repeat(m, 1, 1).to(pool) + moves * (2 * drawn(m, 2, 3) - 1)
    x = F.grid_sample(x, F.affine_grid(where, list(x.shape), align_corners=False), align_corners=False)
    return (x * (1 + 2 * moves * (2 * drawn(m, 1, 1, 1) - 1))).clamp(0, 1)

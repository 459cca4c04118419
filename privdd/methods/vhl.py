"""VHL (Tang et al., ICML 2022): pure-noise anchor images that every client classifies and aligns
with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.types import Surface
from attacks.validation import check_counts, check_non_negative, check_positive
from privdd.core.rng import Keys
from privdd.core.types import Records, RecordShape
from privdd.methods.fedavg import FedAvg
from privdd.models.networks import Classifier
from privdd.training.sgd import ClientRound, Loss, draw_batches

STYLE_SIZE = 64  # dimensions of the latent style (released code: style_dim)
# spread of the class centres, and around them (released code: sample_z_mean, _std)
CENTRE_STD = 0.3
STYLE_STD = 0.1


@lru_cache(maxsize=1)  # every client and round needs the same images, and drawing them is slow
def draw_anchors(shape: RecordShape, classes: int, per_class: int, keys: Keys) -> Records:
    """Labelled noise images from an untrained convolutional generator (n, c, h, w) in [0, 1].

    A class is a Gaussian in the style space; a linear map and random upsampling convolutions turn
    styles into images. Everything stems from the public keys, so no record is involved and nothing
    is
    sent: each party draws the same images. Kept between calls: never change what it returns.
    """
    generator = keys.torch()

    def draw_normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    y = torch.arange(classes).repeat_interleave(per_class)
    style = (CENTRE_STD * draw_normal(classes, STYLE_SIZE))[y] + STYLE_STD * draw_normal(
        len(y), STYLE_SIZE
    )
    z = F.leaky_relu(
        style @ draw_normal(STYLE_SIZE, 16 * 4 * 4) / CENTRE_STD / STYLE_SIZE**0.5, 0.2
    ).reshape(-1, 16, 4, 4)
    while z.shape[-1] < max(shape[1:]):
        z = F.interpolate(z, scale_factor=2, mode="bilinear")
        z = F.leaky_relu(F.conv2d(z, draw_normal(16, 16, 3, 3) / 12, padding=1), 0.2)
        z = F.instance_norm(z + 0.1 * draw_normal(1, 1, *z.shape[2:]))
    image = F.conv2d(z, draw_normal(shape[0], 16, 1, 1) / 4)
    top = (image.shape[-2] - shape[1]) // 2
    left = (image.shape[-1] - shape[2]) // 2
    return Records(
        image[:, :, top : top + shape[1], left : left + shape[2]].sigmoid(), y, torch.arange(len(y))
    )


def supervised_contrast(z: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss of features z (b, d), labels y (b,) (Khosla et al. 2020, eq. 2).

    Anchors without a partner of their class do not count; 0 where none has one.
    """
    z = F.normalize(z)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    logits = (z @ z.T / temperature).masked_fill(itself, -torch.inf)
    log_p = logits.log_softmax(1).masked_fill(itself, 0.0)
    partner = (y[:, None] == y[None, :]) & ~itself
    has = partner.any(1)
    per_anchor = -(log_p * partner).sum(1) / partner.sum(1).clamp(min=1)
    return (per_anchor * has).sum() / has.sum().clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class VHL(FedAvg):
    """Adds alpha CE(anchors) + align supervised_contrast(records and anchors) to every step.

    alpha, align >= 0 (both 0 is FedAvg); temperature > 0; per_class: anchors of each class; each
    step's anchor batch has batch_size images.
    """

    alpha: float = 1.0
    align: float = 0.1
    temperature: float = 0.07
    per_class: int = 200

    why_images_only: ClassVar[str] = "its anchors are drawn by a convolutional generator"
    queries: ClassVar[Mapping[str, Surface]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative(self, "alpha", "align")
        check_positive(self, "temperature")
        check_counts(self, "per_class")

    def loss(self, turn: ClientRound) -> Loss | None:
        if not self.alpha and not self.align:
            return None
        shard = turn.shard
        keys = turn.ctx.keys
        noise = draw_anchors(
            shard.shape, shard.classes, self.per_class, Keys(keys.seed).fold("public", "vhl")
        )
        indices = draw_batches(
            len(noise), self.batch_size, keys.fold("anchors").torch(), noise.y.device
        )

        def joint_loss(net: Classifier, x: Tensor, y: Tensor) -> Tensor:
            at = next(indices)
            extra = noise.x[at].to(x)
            labels = noise.y[at].to(y)
            # batch norm sees records and anchors as one batch
            both = net.features(torch.cat([x, extra]))
            z, z_extra = both.split([len(x), len(extra)])
            aligned = supervised_contrast(both, torch.cat([y, labels]), self.temperature)
            virtual = F.cross_entropy(net.head(z_extra), labels)
            return F.cross_entropy(net.head(z), y) + self.alpha * virtual + self.align * aligned

        return joint_loss

"""Small parts that the networks share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]


def norm_layer(kind: str | None, channels: int, groups: int = 8) -> nn.Module:
    """The normalisation ``kind`` over ``channels``; instance norm is GroupNorm(C, C) with affine."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "instance":
        return nn.GroupNorm(channels, channels)
    if kind == "group":
        return nn.GroupNorm(math.gcd(groups, channels), channels)
    return nn.Identity()


def pool_layer(kind: str | None, size: int = 2) -> nn.Module:
    return nn.MaxPool2d(size) if kind == "max" else nn.AvgPool2d(size)


def relu_and_pool(pool: nn.Module) -> list[nn.Module]:
    """ReLU and ``pool``, in the cheaper order: a maximum is the same bits before and after ReLU, a mean is not."""
    return [pool, nn.ReLU()] if isinstance(pool, nn.MaxPool2d) else [nn.ReLU(), pool]


Scale = tuple[tuple[float, ...], tuple[float, ...]]  # (mean, standard deviation) of each channel


class Classifier(nn.Module):
    """forward(x) = head(features(x)); subclasses give ``body`` and ``head``, or an ``extract_features`` (b, d) of their own, which is
    ``features`` of the standardised images where ``scale`` is set."""

    body: nn.Module
    head: nn.Linear
    scale: Scale | None = None

    def extract_features(self, x: Tensor) -> Tensor:
        return self.body(x).flatten(1)

    def features(self, x: Tensor) -> Tensor:
        """Images (b, c, h, w) in [0, 1] -> (b, d)."""
        return self.extract_features(x if self.scale is None else standardise_images(x, self.scale))

    def forward(self, x: Tensor) -> Tensor:
        """Images (b, c, h, w) in [0, 1] -> logits (b, classes)."""
        return self.head(self.features(x))


def standardise_images(x: Tensor, scale: Scale) -> Tensor:
    """(x - mean) / std by channel; x (..., K c, h, w), the c channels of K networks side by side."""
    copies = x.shape[-3] // len(scale[0])
    mean, std = (torch.tensor(part, dtype=x.dtype, device=x.device).repeat(copies)[:, None, None] for part in scale)
    return (x - mean) / std


def grid_after_halvings(shape: Shape, halvings: int, extra: int = 0) -> tuple[int, int]:
    """Height and width after ``halvings`` floor halvings of (h + extra, w + extra); ValueError at zero."""
    height, width = ((side + extra) >> halvings for side in shape[1:])
    if height < 1 or width < 1:
        raise ValueError(f"model.depth={halvings}: images of {shape[1]}x{shape[2]} cannot be halved {halvings} times")
    return height, width

"""Small parts that the networks share."""

from __future__ import annotations

import math

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


def rectified(pool: nn.Module) -> list[nn.Module]:
    """ReLU and ``pool``, in the cheaper order: a maximum is the same bits before and after ReLU, a mean is not."""
    return [pool, nn.ReLU()] if isinstance(pool, nn.MaxPool2d) else [nn.ReLU(), pool]


class Classifier(nn.Module):
    """forward(x) = head(features(x)); subclasses give ``features`` (b, d) and ``head``."""

    head: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Images (b, c, h, w) in [0, 1] -> logits (b, classes)."""
        return self.head(self.features(x))


def grid_after_halvings(shape: Shape, halvings: int, extra: int = 0) -> tuple[int, int]:
    """Height and width after ``halvings`` floor halvings of (h + extra, w + extra); ValueError at zero."""
    height, width = ((side + extra) >> halvings for side in shape[1:])
    if height < 1 or width < 1:
        raise ValueError(f"model.depth={halvings}: images of {shape[1]}x{shape[2]} cannot be halved {halvings} times")
    return height, width

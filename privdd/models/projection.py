"""FedRD's personal projection: convolutions to quarter size whose maps are reshaped into one grey image.

The paper gives 8 and 16 filters and the output size (section IV-A); kernel 3, padding 1, stride 2 and
one ReLU between are the reading under which every size in its Table IV comes out. Figure 5 has one to four
convolutions with the same output size; how they shrink the image is not stated (``_alone``, ``_chain``).
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from privdd.models.layers import Shape
from privdd.models.spec import ModelSpec


def projected_shape(spec: ModelSpec, shape: Shape) -> Shape:
    """Shape (1, h', w') of a projected image; (1, h, w) at the default 16 filters and sides divisible by 4."""
    root = math.isqrt(spec.width or 16)
    height, width = (root * -(-side // 4) for side in shape[1:])
    return 1, height, width


class Projection(nn.Module):
    """(b, c, h, w) -> (b, 1, h', w'): the 16 quarter-size maps one after the other in memory order."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        self.out = projected_shape(spec, shape)
        depth, width = spec.depth or 2, spec.width or 16
        self.body = nn.Sequential(*_alone(shape[0], width) if depth == 1 else _chain(shape[0], width, depth))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).reshape(len(x), *self.out)


def _alone(channels: int, width: int) -> list[nn.Module]:
    """One convolution straight to quarter size, its kernel wide enough to see every pixel."""
    return [nn.Conv2d(channels, width, 7, stride=4, padding=3)]


def _chain(channels: int, width: int, depth: int) -> list[nn.Module]:
    """The first and the last convolution halve; those between keep the size and have 16 filters."""
    filters = [8, *[16] * (depth - 2)]
    layers: list[nn.Module] = []
    for at, (before, after) in enumerate(zip([channels, *filters], filters)):
        layers += [nn.Conv2d(before, after, 3, stride=1 if at else 2, padding=1), nn.ReLU()]
    return [*layers, nn.Conv2d(filters[-1], width, 3, stride=2, padding=1)]

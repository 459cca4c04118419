"""FedRD's personal projection: two halving convolutions whose maps are reshaped into one grey image.

The paper gives 8 and 16 filters and the output size (section IV-A); kernel 3, padding 1, stride 2 and
one ReLU between are the reading under which every size in its Table IV comes out.
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
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, spec.width or 16, 3, stride=2, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).reshape(len(x), *self.out)

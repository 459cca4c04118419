"""The distillation ConvNet (Gidaris and Komodakis 2018; Zhao and Bilen, dataset condensation, 2021).

depth x {Conv3x3, norm, ReLU, pool 2}, flatten, Linear. With norm=batch, pooling=max and one channel
it is FedRD's task model (FedRD, section IV-A).
"""

from __future__ import annotations

from torch import Tensor, nn

from privdd.models.layers import Classifier, Shape, grid_after_halvings, norm_layer, pool_layer, rectified
from privdd.models.spec import ModelSpec


def automatic_depth(shape: Shape) -> int:
    """Three blocks as published, fewer where less than 2x2 would be left to normalise (8x8 images: two)."""
    return max(1, min(3, min(shape[1:]).bit_length() - 2))


class ConvNet(Classifier):
    """features: (b, width * (h >> depth) * (w >> depth)); depth None is ``automatic_depth``."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        grey = spec.pad_grey and shape[0] == 1
        width, depth = spec.width or 128, spec.depth or automatic_depth(shape)
        height, breadth = grid_after_halvings(shape, depth, extra=4 if grey else 0)
        layers: list[nn.Module] = []
        for block in range(depth):
            padding = 3 if grey and block == 0 else 1
            layers += [
                nn.Conv2d(shape[0] if block == 0 else width, width, 3, padding=padding),
                norm_layer(spec.norm, width, spec.groups),
                *rectified(pool_layer(spec.pooling)),
            ]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width * height * breadth, classes)

    def embed(self, x: Tensor) -> Tensor:
        return self.body(x).flatten(1)

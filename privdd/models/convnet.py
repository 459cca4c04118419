"""Convolutional classifiers: the distillation ConvNet, one for DP-SGD and CPU budgets, and NIID-Bench's simple-cnn."""

from __future__ import annotations

from torch import Tensor, nn

from privdd.models.layers import Classifier, Shape, grid_after_halvings, norm_layer, pool_layer, rectified
from privdd.models.spec import ModelSpec


def automatic_depth(shape: Shape) -> int:
    """Three blocks as published, fewer where less than 2x2 would be left to normalise (8x8 images: two)."""
    return max(1, min(3, min(shape[1:]).bit_length() - 2))


class ConvNet(Classifier):
    """Gidaris and Komodakis 2018; Zhao and Bilen, dataset condensation, 2021: depth x {Conv3x3, norm, ReLU, pool 2}, flatten,
    Linear. With norm=batch, pooling=max and one channel it is FedRD's task model (FedRD, section IV-A).

    features: (b, width * (h >> depth) * (w >> depth)); depth None is ``automatic_depth``.
    """

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


class SmallCNN(Classifier):
    """depth x {Conv3x3, norm, ReLU, pool 2}, filters doubling from ``width``, then Linear + ReLU to 4 * width."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        width, depth = spec.width or 32, spec.depth or 2
        height, breadth = grid_after_halvings(shape, depth)
        layers: list[nn.Module] = []
        inputs = shape[0]
        for block in range(depth):
            filters = width << block
            layers += [nn.Conv2d(inputs, filters, 3, padding=1), norm_layer(spec.norm, filters, spec.groups)]
            layers += rectified(pool_layer(spec.pooling))
            inputs = filters
        self.body = nn.Sequential(*layers)
        self.neck = nn.Linear(inputs * height * breadth, 4 * width)
        self.head = nn.Linear(4 * width, classes)

    def embed(self, x: Tensor) -> Tensor:
        return self.neck(self.body(x).flatten(1)).relu()


class SimpleCNN(Classifier):
    """NIID-Bench's simple-cnn: 5x5 convolutions of 6 and 16 filters, then 120 and 84 units (Li et al. 2022).

    Raises ValueError below 16x16. ``width`` scales all layers from its 6.
    """

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        scale = (spec.width or 6) / 6
        one, two, three, four = (max(1, round(n * scale)) for n in (6, 16, 120, 84))
        height, breadth = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
        if height < 1 or breadth < 1:
            raise ValueError(f"model.name='simplecnn': images of {shape[1]}x{shape[2]} are too small (16x16 at least)")
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], one, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(one, two, 5), nn.MaxPool2d(2), nn.ReLU()
        )
        wide = two * height * breadth
        self.neck = nn.Sequential(nn.Linear(wide, three), nn.ReLU(), nn.Linear(three, four), nn.ReLU())
        self.head = nn.Linear(four, classes)

    def embed(self, x: Tensor) -> Tensor:
        return self.neck(self.body(x).flatten(1))

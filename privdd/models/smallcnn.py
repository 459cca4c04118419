"""Small convolutional classifiers: one for DP-SGD and CPU budgets, and NIID-Bench's simple-cnn."""

from __future__ import annotations

from torch import Tensor, nn

from privdd.models.layers import Classifier, Shape, grid_after_halvings, norm_layer, pool_layer, rectified
from privdd.models.spec import ModelSpec


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

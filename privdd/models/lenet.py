"""What gradient inversion papers attack: the sigmoid LeNet (Zhu et al., Deep Leakage from Gradients, 2019), a perceptron."""

from __future__ import annotations

import math

from torch import Tensor, nn

from privdd.models.layers import Classifier, Shape
from privdd.models.spec import ModelSpec


class LeNet(Classifier):
    """depth x {Conv5x5 (12 filters), sigmoid}, the first two with stride 2, then Linear.

    Smooth and without pooling, so that second derivatives exist everywhere. DLG draws the weights
    from U(-1/2, 1/2): ``init="uniform_half"``.
    """

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        width, depth = spec.width or 12, spec.depth or 3
        layers: list[nn.Module] = []
        inputs, (height, breadth) = shape[0], shape[1:]
        for block in range(depth):
            stride = 2 if block < 2 else 1
            layers += [nn.Conv2d(inputs, width, 5, padding=2, stride=stride), nn.Sigmoid()]
            inputs, height, breadth = width, -(-height // stride), -(-breadth // stride)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width * height * breadth, classes)


class MLP(Classifier):
    """flatten, depth x {Linear width, ReLU}, Linear; features: (b, width).

    The first layer's gradient gives single inputs away in closed form.
    """

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        width = spec.width or 128
        layers: list[nn.Module] = []
        inputs = math.prod(shape)
        for _ in range(spec.depth or 2):
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def embed(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1))

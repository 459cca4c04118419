"""A multilayer perceptron: the first layer's gradient gives single inputs away in closed form."""

from __future__ import annotations

import math

from torch import Tensor, nn

from privdd.models.layers import Classifier, Shape
from privdd.models.spec import ModelSpec


class MLP(Classifier):
    """flatten, depth x {Linear width, ReLU}, Linear; features: (b, width)."""

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

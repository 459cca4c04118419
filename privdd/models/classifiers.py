"""Classifiers: the distillation ConvNet, two small CNNs, NIID-Bench's simple-cnn, LeNet, a perceptron, ResNet-18.

The sigmoid LeNet (Zhu et al., Deep Leakage from Gradients, 2019) and the perceptron are what gradient inversion papers
attack. ResNet-18 has the CIFAR stem (He et al. 2016): 3x3 stride 1, no max-pool; with norm=instance it is the network of the
dataset condensation code (FedDM, FedLGD), with norm=batch and input_norm FedFed's.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from privdd.core.device import average_pool
from privdd.models.layers import Classifier, Shape, grid_after_halvings, norm_layer, pool_layer, relu_and_pool
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
                *relu_and_pool(pool_layer(spec.pooling)),
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
            layers += relu_and_pool(pool_layer(spec.pooling))
            inputs = filters
        self.body = nn.Sequential(*layers)
        self.neck = nn.Linear(inputs * height * breadth, 4 * width)
        self.head = nn.Linear(4 * width, classes)

    def extract_features(self, x: Tensor) -> Tensor:
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

    def extract_features(self, x: Tensor) -> Tensor:
        return self.neck(self.body(x).flatten(1))


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

    def extract_features(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1))


# norm=instance is the DC code's network (FedDM, FedLGD); norm=batch with input_norm is FedFed's.


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a (projected where needed) shortcut."""

    def __init__(self, inputs: int, filters: int, stride: int, spec: ModelSpec) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm_layer(spec.norm, filters, spec.groups)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm2 = norm_layer(spec.norm, filters, spec.groups)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != filters:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, filters, 1, stride=stride, bias=False), norm_layer(spec.norm, filters, spec.groups)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(inner)) + self.shortcut(x)).relu()


class ResNet18(Classifier):
    """features: (b, 8 * width), 512 at the paper's width.

    The last grid is averaged over 4x4 cells (over all of it below 8x8, as at 28 and 32 pixels); where
    more than one cell is left (96 pixels: 3x3) a Linear + ReLU neck brings 4608 to 512: FedLGD's head
    for RETINA, whose activation the paper leaves open. With instance norm a stage does not halve 2x2
    maps: the mean of one value is that value, so 1x1 maps would be the same for every image.
    """

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        width = spec.width or 64
        self.input_norm = nn.BatchNorm2d(shape[0]) if spec.input_norm else nn.Identity()
        self.stem = nn.Conv2d(shape[0], width, 3, padding=1, bias=False)
        self.stem_norm = norm_layer(spec.norm, width, spec.groups)
        blocks: list[nn.Module] = []
        inputs, height, breadth = width, *shape[1:]
        for stage in range(4):
            filters = width << stage
            stride = 1 if stage == 0 or (spec.norm == "instance" and max(height, breadth) <= 2) else 2
            blocks += [BasicBlock(inputs, filters, stride, spec), BasicBlock(filters, filters, 1, spec)]
            inputs, height, breadth = filters, -(-height // stride), -(-breadth // stride)
        self.body = nn.Sequential(*blocks)
        self.cells = max(1, -(-shape[1] // 8) // 4), max(1, -(-shape[2] // 8) // 4)
        wide = inputs * self.cells[0] * self.cells[1]
        self.neck = nn.Identity() if wide == inputs else nn.Sequential(nn.Linear(wide, inputs), nn.ReLU())
        self.head = nn.Linear(inputs, classes)

    def extract_features(self, x: Tensor) -> Tensor:
        grid = self.body(self.stem_norm(self.stem(self.input_norm(x))).relu())
        pooled = average_pool(grid, self.cells)
        return self.neck(pooled.flatten(1))

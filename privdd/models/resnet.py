"""ResNet-18 with the CIFAR stem (He et al. 2016): 3x3 stride 1, no max-pool, stages of 2 basic blocks.

norm=instance is the DC code's network (FedDM, FedLGD); norm=batch with input_norm is FedFed's.
"""

from __future__ import annotations

from torch import Tensor, nn

from attacks.repeatable import average_pool
from privdd.models.layers import Classifier, Shape, norm_layer
from privdd.models.spec import ModelSpec


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

    def embed(self, x: Tensor) -> Tensor:
        grid = self.body(self.stem_norm(self.stem(self.input_norm(x))).relu())
        pooled = average_pool(grid, self.cells)
        return self.neck(pooled.flatten(1))

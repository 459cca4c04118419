"""FedFed's other generators q(x): a residual encoder-decoder, and none at all."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privdd.models.layers import Shape, norm_layer
from privdd.models.spec import ModelSpec
from privdd.models.vae import ResidualBlock, halved_twice

BLOCKS = 4  # FedFed gives no architecture for its ResNet generator; this many residual blocks are a reading


class _Deterministic(nn.Module):
    """What a generator without a code returns beside the image: a code of one number that is always standard normal."""

    latent = 1

    def _with_code(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        code = torch.zeros(len(image), 1, dtype=image.dtype, device=image.device)
        return image, code, code


class ResNetGenerator(_Deterministic):
    """forward(x, noise=None) -> (reconstruction (b, c, h, w) in [0, 1], zeros (b, 1), zeros (b, 1)).

    Two halving convolutions, ``BLOCKS`` residual blocks, two doubling ones (the image generator of Johnson et al.
    2016 with the sigmoid of FedFed's VAE); deterministic, so its KL term is 0 and noise is ignored. Raises
    ValueError where a side is not divisible by 4.
    """

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, breadth = shape
        if height % 4 or breadth % 4:
            raise ValueError(f"model.name='resnet_generator': sides divisible by 4 are needed, got {height}x{breadth}")
        d = spec.width or 32
        half = max(1, d // 2)
        self.body = nn.Sequential(
            *halved_twice(channels, half, d, spec),
            *(ResidualBlock(d, spec) for _ in range(BLOCKS)),
            norm_layer(spec.norm, d, spec.groups),
            nn.ConvTranspose2d(d, half, 4, stride=2, padding=1, bias=False),
            norm_layer(spec.norm, half, spec.groups),
            nn.ReLU(),
            nn.ConvTranspose2d(half, channels, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return self._with_code(self.body(x))


class ZeroGenerator(_Deterministic):
    """q(x) = 0, so that x_s = x: what is shared is the noised image itself (FedFed, appendix F.3)."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return self._with_code(torch.zeros_like(x))

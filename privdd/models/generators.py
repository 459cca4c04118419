"""Networks from images to images: FedFed's generators q(x), and FedRD's personal projection.

The beta-VAE at 32x32, width 32, latent 2048 and batch norm is the network of FedFed's released code (12,648,774 parameters
with three channels); smaller widths and group norm (for DP-SGD, which needs per-record gradients) serve small images. Beside
it: a residual encoder-decoder, and none at all. FedRD's paper gives 8 and 16 filters and the output size (section IV-A);
kernel 3, padding 1, stride 2 and one ReLU between are the reading under which every size in its Table IV comes out. Figure 5
has one to four convolutions with the same output size; how they shrink the image is not stated (``_single_convolution``,
``_convolution_chain``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from privdd.models.layers import Shape, norm_layer
from privdd.models.spec import ModelSpec

# At 32x32, width 32, latent 2048 and batch norm it is the network of FedFed's released code
# (12,648,774 parameters with three channels); smaller widths and group norm (for DP-SGD, which needs
# per-record gradients) serve small images.

LOGVAR_LIMIT = 20.0  # keeps exp(logvar / 2) finite for any weights; far outside trained values


class ResidualBlock(nn.Module):
    """x + {LeakyReLU, Conv3x3, norm, LeakyReLU, Conv1x1}."""

    def __init__(self, channels: int, spec: ModelSpec) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LeakyReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            norm_layer(spec.norm, channels, spec.groups),
            nn.LeakyReLU(),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class VAE(nn.Module):
    """forward(x, noise=None) -> (reconstruction (b, c, h, w) in [0, 1], mu (b, z), logvar (b, z)).

    noise (b, z) standard normal, drawn by the caller: the code is mu + exp(logvar / 2) * noise. Without
    noise the code is mu, whatever the mode. Raises ValueError where a side is not divisible by 4.
    """

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, breadth = shape
        if height % 4 or breadth % 4:
            raise ValueError(f"model.name='vae': sides divisible by 4 are needed, got {height}x{breadth}")
        d, z = spec.width or 32, spec.latent or 2048
        half = max(1, d // 2)
        self.grid = (d, height // 4, breadth // 4)
        flat = d * (height // 4) * (breadth // 4)
        self.latent = z
        self.encoder = nn.Sequential(*_encoder_layers(channels, half, d, spec))
        self.mu = nn.Linear(flat, z)
        self.logvar = nn.Linear(flat, z)
        self.expand = nn.Linear(z, flat)
        self.decoder = nn.Sequential(*_decoder_layers(channels, half, d, spec))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """mu and logvar, each (b, z)."""
        flat = self.encoder(x).flatten(1)
        return self.mu(flat), self.logvar(flat).clamp(-LOGVAR_LIMIT, LOGVAR_LIMIT)

    def decode(self, code: Tensor) -> Tensor:
        """Codes (b, z) -> images (b, c, h, w) in [0, 1]."""
        return self.decoder(self.expand(code).reshape(len(code), *self.grid))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.encode(x)
        code = mu if noise is None else mu + (0.5 * logvar).exp() * noise
        return self.decode(code), mu, logvar


def halving_layers(channels: int, half: int, d: int, spec: ModelSpec) -> list[nn.Module]:
    """Two convolutions to a quarter of each side: (channels, h, w) -> (d, h / 4, w / 4)."""
    return [
        nn.Conv2d(channels, half, 4, stride=2, padding=1, bias=False),
        norm_layer(spec.norm, half, spec.groups),
        nn.ReLU(),
        nn.Conv2d(half, d, 4, stride=2, padding=1, bias=False),
        norm_layer(spec.norm, d, spec.groups),
        nn.ReLU(),
    ]


def _encoder_layers(channels: int, half: int, d: int, spec: ModelSpec) -> list[nn.Module]:
    last = [ResidualBlock(d, spec), norm_layer(spec.norm, d, spec.groups), ResidualBlock(d, spec)]
    return [*halving_layers(channels, half, d, spec), *last]


def _decoder_layers(channels: int, half: int, d: int, spec: ModelSpec) -> list[nn.Module]:
    # A per-image norm of the output would erase each image's own brightness, so only batch norm ends it.
    last = nn.BatchNorm2d(channels) if spec.norm == "batch" else nn.Identity()
    return [
        ResidualBlock(d, spec),
        norm_layer(spec.norm, d, spec.groups),
        ResidualBlock(d, spec),
        norm_layer(spec.norm, d, spec.groups),
        nn.ConvTranspose2d(d, half, 4, stride=2, padding=1, bias=False),
        norm_layer(spec.norm, half, spec.groups),
        nn.LeakyReLU(),
        nn.Tanh(),
        nn.ConvTranspose2d(half, channels, 4, stride=2, padding=1, bias=False),
        last,
        nn.Sigmoid(),
    ]


RESIDUAL_BLOCKS = 4  # FedFed gives no architecture for its ResNet generator; this many residual blocks are a reading


class _CodelessGenerator(nn.Module):
    """A generator without a code: it returns beside the image one number that is always standard normal."""

    latent = 1

    def _with_code(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        code = torch.zeros(len(image), 1, dtype=image.dtype, device=image.device)
        return image, code, code


class ResNetGenerator(_CodelessGenerator):
    """forward(x, noise=None) -> (reconstruction (b, c, h, w) in [0, 1], zeros (b, 1), zeros (b, 1)).

    Two halving convolutions, ``RESIDUAL_BLOCKS`` residual blocks, two doubling ones (the image generator of Johnson et al.
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
            *halving_layers(channels, half, d, spec),
            *(ResidualBlock(d, spec) for _ in range(RESIDUAL_BLOCKS)),
            norm_layer(spec.norm, d, spec.groups),
            nn.ConvTranspose2d(d, half, 4, stride=2, padding=1, bias=False),
            norm_layer(spec.norm, half, spec.groups),
            nn.ReLU(),
            nn.ConvTranspose2d(half, channels, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return self._with_code(self.body(x))


class ZeroGenerator(_CodelessGenerator):
    """q(x) = 0, so that x_s = x: what is shared is the noised image itself (FedFed, appendix F.3)."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return self._with_code(torch.zeros_like(x))


# The paper gives 8 and 16 filters and the output size (section IV-A); kernel 3, padding 1, stride 2 and
# one ReLU between are the reading under which every size in its Table IV comes out. Figure 5 has one to four
# convolutions with the same output size; how they shrink the image is not stated (``_single_convolution``, ``_convolution_chain``).


def projected_shape(spec: ModelSpec, shape: Shape) -> Shape:
    """Shape (1, h', w') of a projected image; (1, h, w) at the default 16 filters and sides divisible by 4."""
    root = math.isqrt(spec.width or 16)
    height, width = (root * -(-side // 4) for side in shape[1:])
    return 1, height, width


class Projection(nn.Module):
    """(b, c, h, w) -> (b, 1, h', w'): the 16 quarter-size maps one after the other in memory order."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        self.out = projected_shape(spec, shape)
        depth, width = spec.depth or 2, spec.width or 16
        self.body = nn.Sequential(
            *_single_convolution(shape[0], width) if depth == 1 else _convolution_chain(shape[0], width, depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).reshape(len(x), *self.out)


def _single_convolution(channels: int, width: int) -> list[nn.Module]:
    """One convolution straight to quarter size, its kernel wide enough to see every pixel."""
    return [nn.Conv2d(channels, width, 7, stride=4, padding=3)]


def _convolution_chain(channels: int, width: int, depth: int) -> list[nn.Module]:
    """The first and the last convolution halve; those between keep the size and have 16 filters."""
    filters = [8, *[16] * (depth - 2)]
    layers: list[nn.Module] = []
    for at, (before, after) in enumerate(zip([channels, *filters], filters)):
        layers += [nn.Conv2d(before, after, 3, stride=1 if at else 2, padding=1), nn.ReLU()]
    return [*layers, nn.Conv2d(filters[-1], width, 3, stride=2, padding=1)]

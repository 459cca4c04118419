"""FedFed's generator q(x): a beta-VAE whose output in [0, 1] is subtracted from the image.

At 32x32, width 32, latent 2048 and batch norm it is the network of FedFed's released code
(12,648,774 parameters with three channels); smaller widths and group norm (for DP-SGD, which needs
per-record gradients) serve small images.
"""

from __future__ import annotations

from torch import Tensor, nn

from privdd.models.layers import Shape, norm_layer
from privdd.models.spec import ModelSpec

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
        self.encoder = nn.Sequential(*_encoder(channels, half, d, spec))
        self.mu = nn.Linear(flat, z)
        self.logvar = nn.Linear(flat, z)
        self.expand = nn.Linear(z, flat)
        self.decoder = nn.Sequential(*_decoder(channels, half, d, spec))

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


def halved_twice(channels: int, half: int, d: int, spec: ModelSpec) -> list[nn.Module]:
    """Two convolutions to a quarter of each side: (channels, h, w) -> (d, h / 4, w / 4)."""
    return [
        nn.Conv2d(channels, half, 4, stride=2, padding=1, bias=False),
        norm_layer(spec.norm, half, spec.groups),
        nn.ReLU(),
        nn.Conv2d(half, d, 4, stride=2, padding=1, bias=False),
        norm_layer(spec.norm, d, spec.groups),
        nn.ReLU(),
    ]


def _encoder(channels: int, half: int, d: int, spec: ModelSpec) -> list[nn.Module]:
    last = [ResidualBlock(d, spec), norm_layer(spec.norm, d, spec.groups), ResidualBlock(d, spec)]
    return [*halved_twice(channels, half, d, spec), *last]


def _decoder(channels: int, half: int, d: int, spec: ModelSpec) -> list[nn.Module]:
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

"""The networks of the reference loops, written out once more, and PyTorch's law for their initial
values.

Values carry the stack's names (body.0.weight, head.bias, ...), so that two states can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from privdd.core.types import State


class ConvNet(nn.Module):
    """depth x {3x3 convolution, norm, ReLU and a pool of 2}, then one linear layer."""

    def __init__(self, spec: Any, shape: Sequence[int], classes: int) -> None:
        super().__init__()
        channels, height, breadth = shape
        layers: list[nn.Module] = []
        for _ in range(spec.depth):
            layers += [nn.Conv2d(channels, spec.width, 3, padding=1), norm(spec, spec.width)]
            layers += [nn.ReLU(), nn.MaxPool2d(2) if spec.pooling == "max" else nn.AvgPool2d(2)]
            channels = spec.width
            height = height // 2
            breadth = breadth // 2
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(channels * height * breadth, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Projection(nn.Module):
    """FedRD: quarter-size maps, read in memory order as one grey image."""

    def __init__(self, spec: Any, shape: Sequence[int], classes: int) -> None:
        super().__init__()
        self.shape = projected(spec, shape)
        first = nn.Conv2d(shape[0], 8, 3, 2, 1)
        second = nn.Conv2d(8, spec.width, 3, 2, 1)
        self.body = nn.Sequential(first, nn.ReLU(), second)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).flatten().view(len(x), *self.shape)


class Residual(nn.Module):
    def __init__(self, spec: Any, d: int) -> None:
        super().__init__()
        first = nn.Conv2d(d, d, 3, padding=1)
        second = nn.Conv2d(d, d, 1)
        self.body = nn.Sequential(nn.LeakyReLU(), first, norm(spec, d), nn.LeakyReLU(), second)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class VAE(nn.Module):
    """FedFed's generator: (x, noise or None) -> (reconstruction, mu, logvar)."""

    def __init__(self, spec: Any, shape: Sequence[int], classes: int) -> None:
        super().__init__()
        c = shape[0]
        d = spec.width
        half = spec.width // 2
        self.latent = spec.latent
        self.grid = (d, shape[1] // 4, shape[2] // 4)
        flat = math.prod(self.grid)
        down = [nn.Conv2d(c, half, 4, 2, 1, bias=False), nn.Conv2d(half, d, 4, 2, 1, bias=False)]
        up = [
            nn.ConvTranspose2d(d, half, 4, 2, 1, bias=False),
            nn.ConvTranspose2d(half, c, 4, 2, 1, bias=False),
        ]
        self.encoder = nn.Sequential(
            down[0],
            norm(spec, half),
            nn.ReLU(),
            down[1],
            norm(spec, d),
            nn.ReLU(),
            Residual(spec, d),
            norm(spec, d),
            Residual(spec, d),
        )
        self.mu = nn.Linear(flat, self.latent)
        self.logvar = nn.Linear(flat, self.latent)
        self.expand = nn.Linear(self.latent, flat)
        self.decoder = nn.Sequential(
            Residual(spec, d),
            norm(spec, d),
            Residual(spec, d),
            norm(spec, d),
            up[0],
            norm(spec, half),
            nn.LeakyReLU(),
            nn.Tanh(),
            up[1],
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        flat = self.encoder(x).flatten(1)
        mu = self.mu(flat)
        logvar = self.logvar(flat)
        code = mu if noise is None else mu + torch.exp(logvar / 2) * noise
        return self.decoder(self.expand(code).unflatten(1, self.grid)), mu, logvar


KINDS = {"convnet": ConvNet, "projection": Projection, "vae": VAE}


def norm(spec: Any, channels: int) -> nn.Module:
    """Instance norm (one group a channel), group norm, or batch norm."""
    if spec.norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm({"instance": channels, "group": math.gcd(8, channels)}[spec.norm], channels)


def projected(spec: Any, shape: Sequence[int]) -> tuple[int, int, int]:
    """The shape of FedRD's grey image."""
    root = math.isqrt(spec.width)
    return 1, root * math.ceil(shape[1] / 4), root * math.ceil(shape[2] / 4)


def blank(spec: Any, shape: Sequence[int], classes: int) -> nn.Module:
    """A module of the described kind, without values and without a draw."""
    with torch.device("meta"):
        model = KINDS[spec.name](spec, shape, classes)
    return model.to_empty(device="cpu")


def network(spec: Any, shape: Sequence[int], classes: int, state: State) -> nn.Module:
    """A module of the described kind with the values of ``state``."""
    model = blank(spec, shape, classes)
    model.load_state_dict(state)
    return model


@torch.no_grad()
def fresh(spec: Any, shape: Sequence[int], classes: int, generator: torch.Generator) -> State:
    """Initial values: uniform within 1/sqrt(fan in), weight before bias, layer after layer; norms
    start as identities."""
    model = blank(spec, shape, classes)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            fan_in = layer.weight[0].numel()
            for values in layer.parameters(recurse=False):
                values.uniform_(-1, 1, generator=generator).mul_(fan_in**-0.5)
        elif isinstance(layer, nn.GroupNorm | nn.BatchNorm2d):
            layer.reset_parameters()
    return dict(model.state_dict())

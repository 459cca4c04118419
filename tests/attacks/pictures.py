"""Real pictures and small victims for the reconstruction tests."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from attacks.inversion.victim import LocalSteps, Victim

SIDE = 28


@lru_cache(maxsize=1)
def pictures() -> tuple[Tensor, Tensor]:
    """(1797, 1, 28, 28) in [0, 1] and (1797,): scikit-learn's digits, enlarged; the same on every
    machine."""
    x, y = digits()
    return F.interpolate(x, size=(SIDE, SIDE), mode="bilinear", align_corners=False), y


@lru_cache(maxsize=1)
def digits() -> tuple[Tensor, Tensor]:
    """(1797, 1, 8, 8) in [0, 1] and (1797,)."""
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(
        data.target
    ).long()


def drawn(model: nn.Module, seed: int = 0, wide: bool = False) -> nn.Module:
    """The model with weights of its own stream: PyTorch's law, or U(-.5, .5) as DLG wants them."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            for p in module.parameters(recurse=False):
                if isinstance(module, nn.Linear | nn.Conv2d):
                    bound = 0.5 if wide else module.weight[0].numel() ** -0.5
                    p.copy_((torch.rand(p.shape, generator=rng) * 2 - 1) * bound)
    return model


def lenet() -> nn.Module:
    """The sigmoid LeNet of DLG for one channel of 28 x 28."""
    layers: list[nn.Module] = []
    for given, stride in ((1, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(given, 12, 5, stride, 2), nn.Sigmoid()]
    return drawn(nn.Sequential(*layers, nn.Flatten(), nn.Linear(588, 10)), wide=True)


def convnet(
    width: int,
    channels: int = 1,
    side: int = 28,
    depth: int = 3,
    norm: type[nn.Module] | None = None,
) -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(depth):
        layers.append(nn.Conv2d(width if i else channels, width, 3, padding=1))
        layers += [norm(width)] if norm else []
        layers += [nn.ReLU(), nn.AvgPool2d(2)]
    return drawn(nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * (side >> depth) ** 2, 10)))


def mlp(side: int = 28, hidden: int = 64) -> nn.Module:
    return drawn(
        nn.Sequential(
            nn.Flatten(), nn.Linear(side * side, hidden), nn.ReLU(), nn.Linear(hidden, 10)
        )
    )


def sent(model: nn.Module, x: Tensor, y: Tensor, local: LocalSteps | None = None) -> list[Tensor]:
    """What the victim sends: detached (theta_0 - theta_T) / lr."""
    return [g.detach() for g in Victim(model, local or LocalSteps()).simulated_gradients(x, y)]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

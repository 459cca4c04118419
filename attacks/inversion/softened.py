"""ReLU networks with rounded corners that sharpen during the search.

The gradient of a ReLU network jumps where a unit switches on or off, which no derivative with respect to the image
sees. With softplus(beta x) / beta in its place the search feels the switches; beta grows until the network is the
victim's again.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from attacks.inversion.optimise import Slope

GROWTH = 100.0  # how much sharper the corners are when they are about to be put back
SHARP = 0.8  # share of the iterations after which the network is the victim's own


class Rounded(nn.Module):
    """softplus(beta x) / beta; ReLU where beta is 0."""

    beta: float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, beta=self.beta) if self.beta else F.relu(x)


def soften(model: nn.Module) -> tuple[nn.Module, list[Rounded]]:
    """A copy of the model whose nn.ReLU modules are ``Rounded``, and these; parameters keep names and order."""
    twin = copy.deepcopy(model)
    corners: list[Rounded] = []
    for parent in list(twin.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                corners.append(Rounded())
                setattr(parent, name, corners[-1])
    return twin, corners


@dataclass
class Sharpening:
    """A slope whose network sharpens from ``beta`` to ``GROWTH`` times that, then is the victim's own."""

    slope: Slope
    corners: list[Rounded]
    beta: float
    iterations: int
    done: int = field(default=0)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share = self.done / self.iterations
        beta = self.beta * GROWTH ** (share / SHARP) if share < SHARP else 0.0
        for corner in self.corners:
            corner.beta = beta
        self.done += 1
        return self.slope(images)

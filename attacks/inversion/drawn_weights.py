"""Layers whose weights are drawn from a named stream, and none from the global one."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.utils import skip_init


def uninitialised_layer(layer: type[nn.Module], *sizes: int, **options: int) -> nn.Module:
    """A layer whose weights are not drawn yet: the global random stream stays untouched."""
    return skip_init(layer, *sizes, **options)  # type: ignore[arg-type]


@torch.no_grad()
def draw_weights(network: nn.Module, generator: torch.Generator) -> None:
    """Kaiming-normal weights and zero biases for every linear and convolutional layer."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            fan = module.weight[0].numel()
            normal = torch.randn(module.weight.shape, generator=generator)
            module.weight.copy_(normal * math.sqrt(2 / fan))
            if module.bias is not None:
                module.bias.zero_()

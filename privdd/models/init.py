"""Initial values by PyTorch's default laws, drawn from one explicit generator.

Convolutions and linear layers: weight and bias from U(-1/sqrt(fan_in), 1/sqrt(fan_in)) (the default
``kaiming_uniform_`` with a = sqrt(5)); norms: weight 1, bias 0, running mean 0, running variance 1.
All random entries come from a single draw, which is what makes a new network per iteration cheap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from privdd.models.build import skeleton
from privdd.models.layers import Shape
from privdd.models.spec import ModelSpec

RANDOM = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


@dataclass(frozen=True)
class Entry:
    """One tensor of a state: random in [-bound, bound] where bound is set, else constant ``fill``."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    bound: float | None
    fill: float


def _fan_in(module: nn.Module) -> int:
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight.size(1) * math.prod(weight.shape[2:])


def _entries(prefix: str, module: nn.Module, spec: ModelSpec) -> list[Entry]:
    bound = None
    if isinstance(module, RANDOM):
        bound = 0.5 if spec.init == "uniform_half" else 1.0 / math.sqrt(_fan_in(module))
    tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    ones = ("weight", "running_var")
    return [
        Entry(f"{prefix}.{leaf}" if prefix else leaf, t.shape, t.dtype, bound, 1.0 if leaf in ones else 0.0)
        for leaf, t in tensors.items()
    ]


@lru_cache(maxsize=128)
def layout(spec: ModelSpec, shape: Shape, classes: int) -> tuple[Entry, ...]:
    """Every parameter and buffer in state_dict order, with the law of its initial values."""
    model = skeleton(spec, shape, classes)
    entries = {e.name: e for prefix, module in model.named_modules() for e in _entries(prefix, module, spec)}
    return tuple(entries[name] for name in model.state_dict())


def initial(spec: ModelSpec, shape: Shape, classes: int, generator: torch.Generator) -> dict[str, Tensor]:
    """A fresh state (parameters and buffers by state_dict name) on the generator's device.

    The same generator state gives the same bits; the global generator is not touched.
    """
    entries = layout(spec, tuple(shape), classes)  # type: ignore[arg-type]
    total = sum(e.shape.numel() for e in entries if e.bound is not None)
    draw = torch.empty(total, device=generator.device).uniform_(-1, 1, generator=generator)
    state, at = {}, 0
    for e in entries:
        if e.bound is None:
            state[e.name] = torch.full(e.shape, e.fill, dtype=e.dtype, device=generator.device)
            continue
        size = e.shape.numel()
        state[e.name] = (draw[at : at + size] * e.bound).reshape(e.shape)
        at += size
    return state

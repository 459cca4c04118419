"""Networks from descriptions: ``build`` gives the module without a random draw, ``initial`` its
first values.

Values follow PyTorch's default laws: convolutions and linear layers U(-1/sqrt(fan_in),
1/sqrt(fan_in)) (the default ``kaiming_uniform_`` with a = sqrt(5)); norms weight 1, bias 0, running
mean 0, running variance 1. All random entries come from a single draw of one explicit generator,
which is what makes a new network per iteration cheap."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from privdd.models.networks import (
    MLP,
    VAE,
    Classifier,
    ConvNet,
    LeNet,
    ModelSpec,
    Projection,
    ResNet18,
    ResNetGenerator,
    Shape,
    SimpleCNN,
    SmallCNN,
    ZeroGenerator,
    check_record_shape,
)
from privdd.models.own import OwnNetwork

NETWORKS: dict[str, Callable[[ModelSpec, Shape, int], nn.Module]] = {
    "convnet": ConvNet,
    "resnet18": ResNet18,
    "smallcnn": SmallCNN,
    "simplecnn": SimpleCNN,
    "lenet": LeNet,
    "mlp": MLP,
    "vae": VAE,
    "resnet_generator": ResNetGenerator,
    "zero": ZeroGenerator,
    "projection": Projection,
    "own": OwnNetwork,
}
RANDOM_LAYERS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


@lru_cache(maxsize=128)
def build_skeleton(spec: ModelSpec, shape: Shape, classes: int) -> nn.Module:
    """The module on the meta device: names and shapes, no values. Shared: never change it."""
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise ValueError(f"shape={shape}: (channels, height, width) or (columns,), at least 1 each")
    check_record_shape(spec, shape)
    if not classes >= 1:
        raise ValueError(f"classes={classes}: at least 1")
    with torch.device("meta"):
        network = NETWORKS[spec.name](spec, shape, classes)
    if spec.scale is not None:
        if not isinstance(network, Classifier) or {len(part) for part in spec.scale} != {shape[0]}:
            raise ValueError(
                f"model.scale={spec.scale}: for classifiers of images with as many channels"
            )
        network.scale = spec.scale
    return network


def build(
    spec: ModelSpec, shape: Shape, classes: int, device: str | torch.device = "cpu"
) -> nn.Module:
    """A module of its own for the caller, in train mode, whose values are all NaN until a state is
    given.

    Use ``torch.func.functional_call(model, state, (x,))`` or ``model.load_state_dict(state)`` with
    a state of ``initial``; NaN makes a forgotten state show. Raises ValueError where the images do
    not fit."""
    model = copy.deepcopy(build_skeleton(spec, tuple(shape), classes)).to_empty(device=device)  # type: ignore[arg-type]
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(torch.nan if tensor.is_floating_point() else 0)
    return model


@dataclass(frozen=True)
class StateEntry:
    """One tensor of a state: random in [-bound, bound] where bound is set, else constant
    ``fill``."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    bound: float | None
    fill: float


def _module_entries(prefix: str, module: nn.Module, spec: ModelSpec) -> list[StateEntry]:
    bound = None
    if isinstance(module, RANDOM_LAYERS):
        fan_in = module.weight.size(1) * math.prod(module.weight.shape[2:])  # type: ignore[union-attr, operator, arg-type]
        if spec.init == "uniform_half":
            bound = 0.5
        else:
            bound = 1.0 / math.sqrt(fan_in)
    tensors = {
        **dict(module.named_parameters(recurse=False)),
        **dict(module.named_buffers(recurse=False)),
    }
    ones = ("weight", "running_var")
    return [
        StateEntry(
            f"{prefix}.{leaf}" if prefix else leaf,
            t.shape,
            t.dtype,
            bound,
            1.0 if leaf in ones else 0.0,
        )
        for leaf, t in tensors.items()
    ]


@lru_cache(maxsize=128)
def state_layout(spec: ModelSpec, shape: Shape, classes: int) -> tuple[StateEntry, ...]:
    """Every parameter and buffer in state_dict order, with the law of its initial values."""
    model = build_skeleton(spec, shape, classes)
    entries = {
        e.name: e
        for prefix, module in model.named_modules()
        for e in _module_entries(prefix, module, spec)
    }
    return tuple(entries[name] for name in model.state_dict())


def initial(
    spec: ModelSpec, shape: Shape, classes: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """A fresh state (parameters and buffers by state_dict name) on the generator's device.

    The same generator state gives the same bits; the global generator is not touched.
    """
    entries = state_layout(spec, tuple(shape), classes)  # type: ignore[arg-type]
    total = sum(e.shape.numel() for e in entries if e.bound is not None)
    draw = torch.empty(total, device=generator.device).uniform_(-1, 1, generator=generator)
    state = {}
    start = 0
    for e in entries:
        if e.bound is None:
            state[e.name] = torch.full(e.shape, e.fill, dtype=e.dtype, device=generator.device)
            continue
        size = e.shape.numel()
        state[e.name] = (draw[start : start + size] * e.bound).reshape(e.shape)
        start += size
    return state

"""Networks from descriptions: ``build`` gives the module, without a single random draw."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import nn

from privdd.models.convnet import ConvNet, SimpleCNN, SmallCNN
from privdd.models.layers import Classifier, Shape
from privdd.models.lenet import MLP, LeNet
from privdd.models.own import OwnNetwork
from privdd.models.projection import Projection
from privdd.models.resnet import ResNet18
from privdd.models.resnet_generator import ResNetGenerator, ZeroGenerator
from privdd.models.spec import ModelSpec
from privdd.models.vae import VAE

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


@lru_cache(maxsize=128)
def skeleton(spec: ModelSpec, shape: Shape, classes: int) -> nn.Module:
    """The module on the meta device: names and shapes, no values. Shared: never change it."""
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"shape={shape}: (channels, height, width), each at least 1")
    if not classes >= 1:
        raise ValueError(f"classes={classes}: at least 1")
    with torch.device("meta"):
        network = NETWORKS[spec.name](spec, shape, classes)
    if spec.scale is not None:
        if not isinstance(network, Classifier) or {len(part) for part in spec.scale} != {shape[0]}:
            raise ValueError(f"model.scale={spec.scale}: for classifiers of images with as many channels")
        network.scale = spec.scale
    return network


def build(spec: ModelSpec, shape: Shape, classes: int, device: str | torch.device = "cpu") -> nn.Module:
    """A module of its own for the caller, in train mode, whose values are all NaN until a state is given.

    Use ``torch.func.functional_call(model, state, (x,))`` or ``model.load_state_dict(state)`` with a state
    of ``initial``; NaN makes a forgotten state show. Raises ValueError where the images do not fit.
    """
    model = copy.deepcopy(skeleton(spec, tuple(shape), classes)).to_empty(device=device)  # type: ignore[arg-type]
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(torch.nan if tensor.is_floating_point() else 0)
    return model

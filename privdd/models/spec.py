"""Which network: a frozen, validated description that travels in configs and cache keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

NORMS = ("instance", "group", "batch", "none")
POOLINGS = ("avg", "max")
INITS = ("default", "uniform_half")
LARGEST = {"width": 2**20, "depth": 1000, "groups": 2**20, "latent": 2**24}  # beyond, a network takes hours to lay out

# What a field left at None means, by network; networks that lack a field ignore it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "convnet": {"width": 128, "norm": "instance", "pooling": "avg"},
    "resnet18": {"width": 64, "norm": "instance"},
    "smallcnn": {"width": 32, "depth": 2, "norm": "none", "pooling": "max"},
    "simplecnn": {"width": 6},
    "lenet": {"width": 12, "depth": 3},
    "mlp": {"width": 128, "depth": 2},
    "vae": {"width": 32, "norm": "batch", "latent": 2048},
    "resnet_generator": {"width": 32, "norm": "batch"},
    "zero": {},
    "projection": {"width": 16, "depth": 2},
}


@dataclass(frozen=True)
class ModelSpec:
    """One network of ``privdd.models``; None takes the network's own default (the paper's).

    name: convnet, resnet18, smallcnn, simplecnn, lenet, mlp (classifiers), vae, resnet_generator, zero
        (FedFed's generators), projection (FedRD's personal projection).
    width: filters (convnet: of each block; resnet18: of the first stage; mlp: units; projection: of
        its last convolution, a square number). depth: blocks or hidden layers (convnet: None
        = 3, fewer for images below 16x16; projection: convolutions, 1 to 4).
    norm: instance | group | batch | none; groups: groups of the group norm (their greatest common
        divisor with the channels is used). pooling: avg | max.
    pad_grey: one-channel images get padding 3 in the first convolution, so 28x28 is treated as 32x32
        (the DC / DM code). input_norm: BatchNorm on the raw image (FedFed's code).
    latent: size of the vae's code. init: default (PyTorch's law) | uniform_half (every weight and
        bias from U(-1/2, 1/2), the law of DLG's experiments).
    scale: (mean, standard deviation) by channel, by which a classifier standardises the images, in [0, 1], that it is
        given; set by data.standardise. None: it reads them as they are.
    """

    name: str = "convnet"
    width: int | None = None
    depth: int | None = None
    norm: str | None = None
    pooling: str | None = None
    groups: int = 8
    pad_grey: bool = False
    input_norm: bool = False
    latent: int | None = None
    init: str = "default"
    scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def __post_init__(self) -> None:
        if self.scale is not None:  # lists, from a config
            object.__setattr__(self, "scale", tuple(map(tuple, self.scale)))
        if self.name not in DEFAULTS:
            raise ValueError(f"model.name={self.name!r}: one of {', '.join(DEFAULTS)}")
        for field, value in DEFAULTS[self.name].items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, value)
        for field in ("width", "depth", "groups", "latent"):
            _check_count(field, getattr(self, field))
        for field, allowed in (("norm", NORMS), ("pooling", POOLINGS), ("init", INITS)):
            value = getattr(self, field)
            if value is not None and value not in allowed:
                raise ValueError(f"model.{field}={value!r}: one of {', '.join(allowed)}")
        if self.name == "projection" and (self.depth or 2) > 4:
            raise ValueError(f"model.depth={self.depth}: the projection has 1 to 4 convolutions")
        if self.name == "projection" and math.isqrt(self.width or 0) ** 2 != self.width:
            raise ValueError(f"model.width={self.width}: the projection needs a square number (1, 4, 9, 16, ...)")


def _check_count(field: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST[field]:
        raise ValueError(f"model.{field}={value!r}: an integer from 1 to {LARGEST[field]} is needed")

"""Which network: a frozen, validated description that travels in configs and cache keys."""

from __future__ import annotations

from dataclasses import dataclass

from privdd.core.group_settings import MODEL_DEFAULTS, check_model


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
        check_model(self)
        for field, value in MODEL_DEFAULTS[self.name].items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, value)

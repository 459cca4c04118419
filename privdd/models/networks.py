"""The networks, and the description by which one is chosen (``ModelSpec``).

Classifiers: the distillation ConvNet, two small CNNs, NIID-Bench's simple-cnn, the sigmoid LeNet
    (Zhu et al., Deep Leakage from Gradients, 2019) and the perceptron that gradient inversion
    papers attack, and ResNet-18 with the CIFAR stem (He et al.
2016): 3x3 stride 1, no max-pool; with norm=instance it is the network of the dataset condensation
code (FedDM, FedLGD), with norm=batch and input_norm FedFed's. From images to images: FedFed's
generators q(x), of which the beta-VAE at 32x32, width 32, latent 2048 and batch norm is the
released code's (12,648,774 parameters with three channels), and FedRD's personal projection.
FedRD's paper gives 8 and 16 filters and the output size (section IV-A); kernel 3, padding 1, stride
2 and one ReLU between are the reading under which every size in its Table IV comes out. Figure 5
has one to four convolutions with the same output size; how they shrink the image is not stated
(``_projection_layers``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privdd.core.device import average_pool
from privdd.core.types import RecordShape, is_image

NORMS = ("instance", "group", "batch", "none")
POOLINGS = ("avg", "max")
INITS = ("default", "uniform_half")
# beyond, a network takes hours to lay out
LARGEST = {
    "width": 2**20,
    "depth": 1000,
    "groups": 2**20,
    "latent": 2**24,
}
# What a field left at None means, by network; networks that lack a field ignore it.
MODEL_DEFAULTS: dict[str, dict[str, Any]] = {
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
TABLE_NETWORKS = ("mlp", "zero", "own")  # that read records of any shape; the others convolve
LOGVAR_LIMIT = 20.0  # keeps exp(logvar / 2) finite for any weights; far outside trained values
# FedFed gives no architecture for its ResNet generator; this many residual blocks are a reading
RESIDUAL_BLOCKS = 4


def check_model(model: ModelSpec) -> None:
    """Raises ValueError for the first setting that is out of its range."""
    if model.name not in MODEL_DEFAULTS:
        raise ValueError(f"model.name={model.name!r}: one of {', '.join(MODEL_DEFAULTS)}")
    for field, most in LARGEST.items():
        value = getattr(model, field)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most
        ):
            raise ValueError(f"model.{field}={value!r}: an integer from 1 to {most} is needed")
    for field, allowed in (("norm", NORMS), ("pooling", POOLINGS), ("init", INITS)):
        value = getattr(model, field)
        if value is not None and value not in allowed:
            raise ValueError(f"model.{field}={value!r}: one of {', '.join(allowed)}")
    if model.name == "projection" and (model.depth or 2) > 4:
        raise ValueError(f"model.depth={model.depth}: the projection has 1 to 4 convolutions")
    if model.name == "projection" and model.width and math.isqrt(model.width) ** 2 != model.width:
        raise ValueError(
            f"model.width={model.width}: the projection needs a square number (1, 4, 9, 16, ...)"
        )


@dataclass(frozen=True)
class ModelSpec:
    """One network of ``privdd.models``; None takes the network's own default (the paper's).

    name: convnet, resnet18, smallcnn, simplecnn, lenet, mlp (classifiers), vae, resnet_generator,
        zero (FedFed's generators), projection (FedRD's personal projection).
    width: filters (convnet: of each block; resnet18: of the first stage; mlp: units; projection: of
        its last convolution, a square number). depth: blocks or hidden layers (projection:
        convolutions, 1 to 4).
    norm: instance | group | batch | none; groups: of the group norm (their greatest common divisor with the channels is
        used). pooling: avg | max. pad_grey: one-channel images get padding 3 in the first
        convolution, so 28x28 is treated as 32x32 (the DC / DM code). input_norm: BatchNorm on the
        raw image (FedFed's code).
    latent: size of the vae's code. init: default (PyTorch's law) | uniform_half (every weight and
        bias from U(-1/2, 1/2), the law of DLG's experiments).
    scale: (mean, standard deviation) by channel, by which a classifier standardises the images that
        it is given; set by data.standardise.
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


Shape = RecordShape


def norm_layer(spec: ModelSpec, channels: int) -> nn.Module:
    """The normalisation ``spec.norm`` over ``channels``; instance norm is GroupNorm(C, C) with
    affine."""
    if spec.norm == "batch":
        return nn.BatchNorm2d(channels)
    if spec.norm in ("instance", "group"):
        return nn.GroupNorm(
            channels if spec.norm == "instance" else math.gcd(spec.groups, channels), channels
        )
    return nn.Identity()


def pool_layer(kind: str | None) -> nn.Module:
    return nn.MaxPool2d(2) if kind == "max" else nn.AvgPool2d(2)


def relu_and_pool(pool: nn.Module) -> list[nn.Module]:
    """ReLU and ``pool``, in the cheaper order: a maximum is the same bits before and after ReLU, a
    mean is not."""
    if isinstance(pool, nn.MaxPool2d):
        return [pool, nn.ReLU()]
    return [nn.ReLU(), pool]


Scale = tuple[tuple[float, ...], tuple[float, ...]]  # (mean, standard deviation) of each channel


def check_record_shape(model: ModelSpec, shape: Shape) -> None:
    """Checks that a network reads records of this shape.

    Raises:
        ValueError: for a network of convolutions and rows of a table.
    """
    if not is_image(shape) and model.name not in TABLE_NETWORKS:
        raise ValueError(
            f"model.name={model.name!r}: it reads images, and a record is a row of "
            f"{math.prod(shape)} numbers; networks that read rows are {', '.join(TABLE_NETWORKS)}"
        )


class Classifier(nn.Module):
    """forward(x) = head(features(x)); subclasses give ``body`` and ``head``, or an
    ``extract_features`` (b, d) of their own, which is ``features`` of the standardised images where
    ``scale`` is set."""

    body: nn.Module
    head: nn.Linear
    scale: Scale | None = None

    def extract_features(self, x: Tensor) -> Tensor:
        return self.body(x).flatten(1)

    def features(self, x: Tensor) -> Tensor:
        """Images (b, c, h, w) in [0, 1] -> (b, d)."""
        return self.extract_features(x if self.scale is None else standardise_images(x, self.scale))

    def forward(self, x: Tensor) -> Tensor:
        """Images (b, c, h, w) in [0, 1] -> logits (b, classes)."""
        return self.head(self.features(x))


def standardise_images(x: Tensor, scale: Scale) -> Tensor:
    """(x - mean) / std by channel; x (..., K c, h, w), the c channels of K networks side by
    side."""
    copies = x.shape[-3] // len(scale[0])
    mean, std = (
        torch.tensor(part, dtype=x.dtype, device=x.device).repeat(copies)[:, None, None]
        for part in scale
    )
    return (x - mean) / std


def grid_after_halvings(shape: Shape, halvings: int, extra: int = 0) -> tuple[int, int]:
    """Height and width after ``halvings`` floor halvings of (h + extra, w + extra); ValueError at
    zero."""
    height, width = ((side + extra) >> halvings for side in shape[1:])
    if height < 1 or width < 1:
        raise ValueError(
            f"model.depth={halvings}: images of {shape[1]}x{shape[2]} cannot be halved "
            f"{halvings} times"
        )
    return height, width


def automatic_depth(shape: Shape) -> int:
    """Three blocks as published, fewer where less than 2x2 would be left to normalise (8x8 images:
    two)."""
    return max(1, min(3, min(shape[1:]).bit_length() - 2))


class ConvNet(Classifier):
    """Gidaris and Komodakis 2018; Zhao and Bilen, dataset condensation, 2021: depth x {Conv3x3,
    norm, ReLU, pool 2}, flatten, Linear. With norm=batch, pooling=max and one channel it is FedRD's
    task model (FedRD, section IV-A).

    features: (b, width * (h >> depth) * (w >> depth)); depth None is ``automatic_depth``.
    """

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        grey = spec.pad_grey and shape[0] == 1
        width = spec.width or 128
        depth = spec.depth or automatic_depth(shape)
        height, breadth = grid_after_halvings(shape, depth, extra=4 if grey else 0)
        layers: list[nn.Module] = []
        for block in range(depth):
            padding = 3 if grey and block == 0 else 1
            layers += [
                nn.Conv2d(shape[0] if block == 0 else width, width, 3, padding=padding),
                norm_layer(spec, width),
                *relu_and_pool(pool_layer(spec.pooling)),
            ]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width * height * breadth, classes)


class SmallCNN(Classifier):
    """depth x {Conv3x3, norm, ReLU, pool 2}, filters doubling from ``width``, then Linear + ReLU to
    4 * width."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        width = spec.width or 32
        depth = spec.depth or 2
        height, breadth = grid_after_halvings(shape, depth)
        layers: list[nn.Module] = []
        inputs = shape[0]
        for block in range(depth):
            filters = width << block
            layers += [nn.Conv2d(inputs, filters, 3, padding=1), norm_layer(spec, filters)]
            layers += relu_and_pool(pool_layer(spec.pooling))
            inputs = filters
        self.body = nn.Sequential(*layers)
        self.neck = nn.Linear(inputs * height * breadth, 4 * width)
        self.head = nn.Linear(4 * width, classes)

    def extract_features(self, x: Tensor) -> Tensor:
        return self.neck(self.body(x).flatten(1)).relu()


class SimpleCNN(Classifier):
    """NIID-Bench's simple-cnn: 5x5 convolutions of 6 and 16 filters, then 120 and 84 units (Li et
    al. 2022).

    Raises ValueError below 16x16. ``width`` scales all layers from its 6.
    """

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        scale = (spec.width or 6) / 6
        widths = [max(1, round(width * scale)) for width in (6, 16, 120, 84)]
        first, second, third, fourth = widths
        height, breadth = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
        if height < 1 or breadth < 1:
            raise ValueError(
                f"model.name='simplecnn': images of {shape[1]}x{shape[2]} are too small "
                "(16x16 at least)"
            )
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], first, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(first, second, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        features = second * height * breadth
        self.neck = nn.Sequential(
            nn.Linear(features, third), nn.ReLU(), nn.Linear(third, fourth), nn.ReLU()
        )
        self.head = nn.Linear(fourth, classes)

    def extract_features(self, x: Tensor) -> Tensor:
        return self.neck(self.body(x).flatten(1))


class LeNet(Classifier):
    """depth x {Conv5x5 (12 filters), sigmoid}, the first two with stride 2, then Linear.

    Smooth and without pooling, so that second derivatives exist everywhere. DLG's weights:
    ``init="uniform_half"``."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        width = spec.width or 12
        depth = spec.depth or 3
        layers: list[nn.Module] = []
        inputs, (height, breadth) = shape[0], shape[1:]
        for block in range(depth):
            stride = 2 if block < 2 else 1
            layers += [nn.Conv2d(inputs, width, 5, padding=2, stride=stride), nn.Sigmoid()]
            inputs = width
            height = -(-height // stride)
            breadth = -(-breadth // stride)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width * height * breadth, classes)


class MLP(Classifier):
    """flatten, depth x {Linear width, ReLU}, Linear; features: (b, width).

    The first layer's gradient gives single inputs away in closed form.
    """

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        width = spec.width or 128
        layers: list[nn.Module] = []
        inputs = math.prod(shape)
        for _ in range(spec.depth or 2):
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def extract_features(self, x: Tensor) -> Tensor:
        return self.body(x.flatten(1))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a (projected where needed) shortcut."""

    def __init__(self, inputs: int, filters: int, stride: int, spec: ModelSpec) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm_layer(spec, filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm2 = norm_layer(spec, filters)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != filters:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, filters, 1, stride=stride, bias=False), norm_layer(spec, filters)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(inner)) + self.shortcut(x)).relu()


class ResNet18(Classifier):
    """features: (b, 8 * width), 512 at the paper's width.

    The last grid is averaged over 4x4 cells (over all of it below 8x8, as at 28 and 32 pixels);
    where more than one cell is left (96 pixels: 3x3) a Linear + ReLU neck brings 4608 to 512:
    FedLGD's head for RETINA, whose activation the paper leaves open. With instance norm a stage
    does not halve 2x2 maps: 1x1 maps would be the same for every image."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        width = spec.width or 64
        self.input_norm: nn.Module
        if spec.input_norm:
            self.input_norm = nn.BatchNorm2d(shape[0])
        else:
            self.input_norm = nn.Identity()
        self.stem = nn.Conv2d(shape[0], width, 3, padding=1, bias=False)
        self.stem_norm = norm_layer(spec, width)
        blocks: list[nn.Module] = []
        inputs = width
        height, breadth = shape[1:]
        for stage in range(4):
            filters = width << stage
            if stage == 0 or (spec.norm == "instance" and max(height, breadth) <= 2):
                stride = 1
            else:
                stride = 2
            blocks += [
                BasicBlock(inputs, filters, stride, spec),
                BasicBlock(filters, filters, 1, spec),
            ]
            inputs = filters
            height = -(-height // stride)
            breadth = -(-breadth // stride)
        self.body = nn.Sequential(*blocks)
        self.cells = max(1, -(-shape[1] // 8) // 4), max(1, -(-shape[2] // 8) // 4)
        wide = inputs * self.cells[0] * self.cells[1]
        self.neck: nn.Module
        if wide == inputs:
            self.neck = nn.Identity()
        else:
            self.neck = nn.Sequential(nn.Linear(wide, inputs), nn.ReLU())
        self.head = nn.Linear(inputs, classes)

    def extract_features(self, x: Tensor) -> Tensor:
        grid = self.body(self.stem_norm(self.stem(self.input_norm(x))).relu())
        pooled = average_pool(grid, self.cells)
        return self.neck(pooled.flatten(1))


class ResidualBlock(nn.Module):
    """x + {LeakyReLU, Conv3x3, norm, LeakyReLU, Conv1x1}."""

    def __init__(self, channels: int, spec: ModelSpec) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LeakyReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            norm_layer(spec, channels),
            nn.LeakyReLU(),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class VAE(nn.Module):
    """forward(x, noise=None) -> (reconstruction (b, c, h, w) in [0, 1], mu (b, z), logvar (b, z)).

    noise (b, z) standard normal, drawn by the caller: the code is mu + exp(logvar / 2) * noise.
    Without noise the code is mu, whatever the mode. Raises ValueError where a side is not divisible
    by 4."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, breadth = shape
        if height % 4 or breadth % 4:
            raise ValueError(
                f"model.name='vae': sides divisible by 4 are needed, got {height}x{breadth}"
            )
        d = spec.width or 32
        z = spec.latent or 2048
        half = max(1, d // 2)
        self.grid = (d, height // 4, breadth // 4)
        flat = d * (height // 4) * (breadth // 4)
        self.latent = z
        last = [ResidualBlock(d, spec), norm_layer(spec, d), ResidualBlock(d, spec)]
        self.encoder = nn.Sequential(*halving_layers(channels, half, d, spec), *last)
        self.mu = nn.Linear(flat, z)
        self.logvar = nn.Linear(flat, z)
        self.expand = nn.Linear(z, flat)
        # a per-image norm of the output would erase each image's own brightness, so only batch norm
        # ends it
        end: nn.Module
        if spec.norm == "batch":
            end = nn.BatchNorm2d(channels)
        else:
            end = nn.Identity()
        self.decoder = nn.Sequential(
            ResidualBlock(d, spec),
            norm_layer(spec, d),
            ResidualBlock(d, spec),
            norm_layer(spec, d),
            nn.ConvTranspose2d(d, half, 4, stride=2, padding=1, bias=False),
            norm_layer(spec, half),
            nn.LeakyReLU(),
            nn.Tanh(),
            nn.ConvTranspose2d(half, channels, 4, stride=2, padding=1, bias=False),
            end,
            nn.Sigmoid(),
        )

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """mu and logvar, each (b, z)."""
        flat = self.encoder(x).flatten(1)
        return self.mu(flat), self.logvar(flat).clamp(-LOGVAR_LIMIT, LOGVAR_LIMIT)

    def decode(self, code: Tensor) -> Tensor:
        """Codes (b, z) -> images (b, c, h, w) in [0, 1]."""
        # many networks side by side have many times d channels
        return self.decoder(self.expand(code).reshape(len(code), -1, *self.grid[1:]))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.encode(x)
        if noise is None:
            code = mu
        else:
            code = mu + (0.5 * logvar).exp() * noise
        return self.decode(code), mu, logvar


def halving_layers(channels: int, half: int, d: int, spec: ModelSpec) -> list[nn.Module]:
    """Two convolutions to a quarter of each side: (channels, h, w) -> (d, h / 4, w / 4)."""
    return [
        nn.Conv2d(channels, half, 4, stride=2, padding=1, bias=False),
        norm_layer(spec, half),
        nn.ReLU(),
        nn.Conv2d(half, d, 4, stride=2, padding=1, bias=False),
        norm_layer(spec, d),
        nn.ReLU(),
    ]


class _CodelessGenerator(nn.Module):
    """A generator without a code: it returns beside the image one number that is always standard
    normal."""

    latent = 1

    def _with_code(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        code = torch.zeros(len(image), 1, dtype=image.dtype, device=image.device)
        return image, code, code


class ResNetGenerator(_CodelessGenerator):
    """forward(x, noise=None) -> (reconstruction (b, c, h, w) in [0, 1], zeros (b, 1), zeros (b,
    1)).

    Two halving convolutions, ``RESIDUAL_BLOCKS`` residual blocks, two doubling ones (the image
    generator of Johnson et al. 2016 with the sigmoid of FedFed's VAE); noise is ignored. Raises
    ValueError where a side is not divisible by 4."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, breadth = shape
        if height % 4 or breadth % 4:
            raise ValueError(
                "model.name='resnet_generator': sides divisible by 4 are needed, got "
                f"{height}x{breadth}"
            )
        d = spec.width or 32
        half = max(1, d // 2)
        self.body = nn.Sequential(
            *halving_layers(channels, half, d, spec),
            *(ResidualBlock(d, spec) for _ in range(RESIDUAL_BLOCKS)),
            norm_layer(spec, d),
            nn.ConvTranspose2d(d, half, 4, stride=2, padding=1, bias=False),
            norm_layer(spec, half),
            nn.ReLU(),
            nn.ConvTranspose2d(half, channels, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return self._with_code(self.body(x))


class ZeroGenerator(_CodelessGenerator):
    """q(x) = 0, so that x_s = x: what is shared is the noised image itself (FedFed, appendix
    F.3)."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return self._with_code(torch.zeros_like(x))


def projected_shape(spec: ModelSpec, shape: Shape) -> Shape:
    """Shape (1, h', w') of a projected image; (1, h, w) at the default 16 filters and sides
    divisible by 4."""
    root = math.isqrt(spec.width or 16)
    height, width = (root * -(-side // 4) for side in shape[1:])
    return 1, height, width


class Projection(nn.Module):
    """(b, c, h, w) -> (b, 1, h', w'): the 16 quarter-size maps one after the other in memory
    order."""

    def __init__(self, spec: ModelSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        self.out = projected_shape(spec, shape)
        depth = spec.depth or 2
        width = spec.width or 16
        self.body = nn.Sequential(*_projection_layers(shape[0], width, depth))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).reshape(len(x), *self.out)


def _projection_layers(channels: int, width: int, depth: int) -> list[nn.Module]:
    """One convolution straight to quarter size, its kernel wide enough to see every pixel; or a
    chain of which the first and the last halve, those between keep the size and have 16 filters."""
    if depth == 1:
        return [nn.Conv2d(channels, width, 7, stride=4, padding=3)]
    filters = [8, *[16] * (depth - 2)]
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(zip([channels, *filters], filters)):
        layers += [nn.Conv2d(before, after, 3, stride=1 if index else 2, padding=1), nn.ReLU()]
    return [*layers, nn.Conv2d(filters[-1], width, 3, stride=2, padding=1)]

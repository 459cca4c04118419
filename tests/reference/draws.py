"""What the reference loops draw for themselves: augmentation, batches by priority, VHL's anchors.

The numbers come from the same streams as the stack's, in the same order, or the two could not be
compared; what is made of them is written out here once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from scipy.stats import norm
from torch import Tensor
from torch.nn import functional as F

from privdd.core.rng import Keys

Operation = Callable[[Tensor], Tensor]


def normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Standard normal numbers by inversion: a sign, and the probability of a magnitude at least as
    large."""
    drawn = 2 * torch.rand(tuple(shape), generator=generator, dtype=torch.float64).numpy()
    side = drawn >= 1
    tail = drawn % 1
    small = tail < 1 / 32
    finer = (
        torch.rand(int(small.sum()), generator=generator, dtype=torch.float64)
        .clamp_min(2.0**-54)
        .numpy()
    )
    tail[~small] += 2.0**-53
    tail[small] += finer * 2.0**-52
    return torch.from_numpy(norm.isf(tail / 2) * (1 - 2.0 * side))


def augmentation(strategy: str, shape: Sequence[int], generator: torch.Generator) -> Operation:
    """One operation of "a_b_c" (Zhao and Bilen 2021), drawn with its numbers, for images (b, c, h,
    w)."""
    _, h, w = shape

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    def real(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=generator).item()

    names = strategy.split("_")
    name = names[whole(0, len(names) - 1)]
    if name == "none":
        return lambda x: x
    if name == "flip":
        mirrored = real(0, 1) < 0.5
        return lambda x: x[..., range(w - 1, -1, -1)] if mirrored else x
    if name == "color":
        return coloured(real(-0.5, 0.5), real(0, 2), real(0.5, 1.5))
    if name == "crop":
        most = round_half_up(h / 8), round_half_up(w / 8)
        return moved(h, w, whole(-most[0], most[0]), whole(-most[1], most[1]))
    if name == "cutout":
        return erased(h, w, whole(0, h - 1), whole(0, w - 1))
    if name == "scale":
        return warped(h, w, real(1 / 1.2, 1.2), 0, 0, real(1 / 1.2, 1.2))
    angle = math.radians({"rotate": real}[name](-15, 15))
    return warped(h, w, math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle))


def round_half_up(value: float) -> int:
    return math.floor(value + 0.5)


def coloured(brightness: float, saturation: float, contrast: float) -> Operation:
    """Brighter by a number, then channels about their mean, then pixels about the image's."""

    def apply(x: Tensor) -> Tensor:
        x = x + brightness
        x = saturation * x + (1 - saturation) * x.mean(1, keepdim=True)
        return contrast * x + (1 - contrast) * x.mean((1, 2, 3), keepdim=True)

    return apply


def read(at: list[list[tuple[int, int, float]]], h: int, w: int) -> Operation:
    """Every output pixel (row by row) as a weighted sum of input pixels (row, column, weight); zero
    outside."""
    sources = []
    weights = []
    for pixel in at:
        inside = [(0 <= i < h and 0 <= j < w) for i, j, _ in pixel]
        sources.append([i * w + j if ok else 0 for (i, j, _), ok in zip(pixel, inside)])
        weights.append([weight if ok else 0.0 for (_, _, weight), ok in zip(pixel, inside)])
    where = torch.tensor(sources)
    share = torch.tensor(weights)
    return lambda x: (x.flatten(2)[:, :, where] * share.to(x.dtype)).sum(-1).unflatten(2, (h, w))


def moved(h: int, w: int, rows: int, columns: int) -> Operation:
    return read([[(i - rows, j - columns, 1.0)] for i in range(h) for j in range(w)], h, w)


def erased(h: int, w: int, row: int, column: int) -> Operation:
    """A square of half the side around (row, column) is zero."""
    tall = round_half_up(h / 2)
    wide = round_half_up(w / 2)
    top = row - tall // 2
    left = column - wide // 2

    def kept(i: int, j: int) -> float:
        return float(not (top <= i < top + tall and left <= j < left + wide))

    return read([[(i, j, kept(i, j))] for i in range(h) for j in range(w)], h, w)


def warped(h: int, w: int, a: float, b: float, c: float, d: float) -> Operation:
    """Output (u, v) shows input (a u + b v, c u + d v), by the four pixels around it; u, v in (-1,
    1) across the image."""
    at = []
    for i in range(h):
        for j in range(w):
            u = (2 * j + 1) / w - 1
            v = (2 * i + 1) / h - 1
            x = ((a * u + b * v + 1) * w - 1) / 2
            y = ((c * u + d * v + 1) * h - 1) / 2
            left = math.floor(x)
            top = math.floor(y)
            right = x - left
            down = y - top
            at.append(
                [
                    (top, left, (1 - down) * (1 - right)),
                    (top, left + 1, (1 - down) * right),
                    (top + 1, left, down * (1 - right)),
                    (top + 1, left + 1, down * right),
                ]
            )
    return read(at, h, w)


def finalised(z: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def priorities(ids: Tensor, keys: Keys) -> Tensor:
    """A pseudo-random number for each id, from it and the key alone: a batch is the records of the
    smallest."""
    key = keys.integer() % 2**64
    return torch.tensor(
        [finalised(finalised((i + 0x9E3779B97F4A7C15) % 2**64) ^ key) >> 1 for i in ids.tolist()]
    )


def anchors(
    shape: Sequence[int], classes: int, per_class: int, keys: Keys
) -> tuple[Tensor, Tensor]:
    """VHL's noise images of each class (released code: styles around class centres, upsampling
    convolutions)."""
    generator = keys.torch()
    centres = 0.3 * torch.randn(classes, 64, generator=generator)
    around = 0.1 * torch.randn(classes * per_class, 64, generator=generator)
    styles = torch.stack([centres[n // per_class] + around[n] for n in range(len(around))])
    to_image = torch.randn(64, 256, generator=generator) / (0.3 * 8)
    z = F.leaky_relu(styles @ to_image, 0.2).view(-1, 16, 4, 4)
    while z.shape[-1] < max(shape[1:]):
        z = torch.nn.Upsample(scale_factor=2, mode="bilinear")(z)
        z = F.leaky_relu(
            F.conv2d(z, torch.randn(16, 16, 3, 3, generator=generator) / 12, padding=1), 0.2
        )
        z = z + 0.1 * torch.randn(1, 1, *z.shape[2:], generator=generator)
        variance, mean = torch.var_mean(z, (2, 3), correction=0, keepdim=True)
        z = (z - mean) / (variance + 1e-5).sqrt()
    image = torch.sigmoid(F.conv2d(z, torch.randn(shape[0], 16, 1, 1, generator=generator) / 4))
    top, left = ((have - want) // 2 for have, want in zip(image.shape[2:], shape[1:]))
    labels = torch.tensor([c for c in range(classes) for _ in range(per_class)])
    return image[:, :, top : top + shape[1], left : left + shape[2]], labels

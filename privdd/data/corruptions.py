"""Image corruptions named after CIFAR-10-C (Hendrycks and Dietterich 2019), as plain array code.

All nineteen, with its severities 1 to 5; those of weather and lenses are in ``textured_corruptions``, which says where
they are not the original. Images are (n, c, h, w) in [0, 1]; every draw comes from the generator. Pixel values are
clipped to [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from privdd.data.image_filters import disk, filtered, gaussian_kernel, smoothed, streaked, zoomed
from privdd.data.textured_corruptions import TEXTURED

Corruption = Callable[[Tensor, int, Generator], Tensor]


def corrupt(name: str, x: Tensor, severity: int, generator: Generator) -> Tensor:
    """The images under corruption ``name``. Raises ValueError for an unknown name or severity."""
    if name not in CORRUPTIONS:
        raise ValueError(f"data.corruptions={name!r}: one of {', '.join(CORRUPTIONS)}")
    if isinstance(severity, bool) or severity not in (1, 2, 3, 4, 5):
        raise ValueError(f"data.severity={severity!r}: 1, 2, 3, 4 or 5")
    if name in COLOUR_ONLY and x.shape[1] != 3:
        raise ValueError(f"data.corruptions={name!r}: does nothing to grey images")
    return CORRUPTIONS[name](x, severity - 1, generator).clamp(0, 1)


def names_for(channels: int, asked: str | Sequence[str] = "all") -> tuple[str, ...]:
    """``asked`` as a tuple; "all" gives every corruption that acts on images of ``channels`` channels."""
    if asked == "all":
        return tuple(name for name in CORRUPTIONS if channels == 3 or name not in COLOUR_ONLY)
    chosen = (asked,) if isinstance(asked, str) else tuple(asked)
    if not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(f"data.corruptions={list(chosen)}: at least one name, each once")
    return chosen


def _gaussian_noise(x: Tensor, level: int, g: Generator) -> Tensor:
    return x + (0.04, 0.06, 0.08, 0.09, 0.10)[level] * torch.randn(x.shape, generator=g)


def _shot_noise(x: Tensor, level: int, g: Generator) -> Tensor:
    photons = (500, 250, 100, 75, 50)[level]
    return torch.poisson(x * photons, generator=g) / photons


def _impulse_noise(x: Tensor, level: int, g: Generator) -> Tensor:
    amount = (0.01, 0.02, 0.03, 0.05, 0.07)[level]
    hit = torch.rand(x.shape, generator=g) < amount
    salt = (torch.rand(x.shape, generator=g) < 0.5).to(x.dtype)
    return torch.where(hit, salt, x)


def _speckle_noise(x: Tensor, level: int, g: Generator) -> Tensor:
    return x + x * (0.06, 0.1, 0.12, 0.16, 0.2)[level] * torch.randn(x.shape, generator=g)


def _gaussian_blur(x: Tensor, level: int, g: Generator) -> Tensor:
    return filtered(x, gaussian_kernel((0.4, 0.6, 0.7, 0.8, 1.0)[level]))


def _defocus_blur(x: Tensor, level: int, g: Generator) -> Tensor:
    radius, soft = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[level]
    return filtered(x, smoothed(disk(radius), gaussian_kernel(soft)))


def _motion_blur(x: Tensor, level: int, g: Generator) -> Tensor:
    radius, sigma = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))[level]
    return streaked(x, radius, sigma, (torch.rand(len(x), generator=g) - 0.5) * (math.pi / 2))


def _zoom_blur(x: Tensor, level: int, g: Generator) -> Tensor:
    largest = (0.05, 0.10, 0.15, 0.20, 0.25)[level]
    zooms = torch.arange(0, largest + 0.005, 0.01)
    total = x + sum(zoomed(x, 1 + float(zoom)) for zoom in zooms)
    return total / (len(zooms) + 1)


def _brightness(x: Tensor, level: int, g: Generator) -> Tensor:
    value = x.amax(1, keepdim=True)  # HSV value: raised with hue and saturation kept
    raised = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[level]).clamp(max=1)
    return torch.where(value > 0, x * raised / value.clamp(min=1e-6), raised)


def _contrast(x: Tensor, level: int, g: Generator) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[level] + mean


def _saturate(x: Tensor, level: int, g: Generator) -> Tensor:
    factor, offset = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))[level]
    value, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    saturation = (value - low) / value.clamp(min=1e-6)
    wanted = (saturation * factor + offset).clamp(0, 1)
    return torch.where(saturation > 0, value - (value - x) * wanted / saturation.clamp(min=1e-6), x)


def _pixelate(x: Tensor, level: int, g: Generator) -> Tensor:
    scale = (0.95, 0.9, 0.85, 0.75, 0.65)[level]
    height, width = (max(1, int(side * scale)) for side in x.shape[2:])
    return F.interpolate(F.adaptive_avg_pool2d(x, (height, width)), size=x.shape[2:], mode="nearest")


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "speckle_noise": _speckle_noise,
    "gaussian_blur": _gaussian_blur,
    "defocus_blur": _defocus_blur,
    "motion_blur": _motion_blur,
    "zoom_blur": _zoom_blur,
    "brightness": _brightness,
    "contrast": _contrast,
    "saturate": _saturate,
    "pixelate": _pixelate,
    **TEXTURED,
}
COLOUR_ONLY = ("saturate",)

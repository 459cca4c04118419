"""Image corruptions named after CIFAR-10-C (Hendrycks and Dietterich 2019), as plain array code.

All nineteen, with its severities 1 to 5, and the filters and warps that they are made of (borders
are repeated). Not the
original: frost is a texture made of noise, where CIFAR-10-C cuts from photos of ice; spattered
    water is drawn without the relief that it takes from detected edges; lengths that are given for
    32 pixels scale with the image. Images are (n, c, h, w)
in [0, 1]; every draw comes from the generator. Pixel values are clipped to [0, 1].
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Generator, Tensor
from torch.nn import functional as F

CORRUPTIONS: dict[
    str, tuple[Callable[..., Tensor], tuple[Any, ...]]
] = {}  # name -> function, its parameters by severity
COLOUR_ONLY = ("saturate",)
WATER = (175 / 255, 238 / 255, 238 / 255)
MUD = (63 / 255, 42 / 255, 20 / 255)


def corrupt_images(name: str, x: Tensor, severity: int, generator: Generator) -> Tensor:
    """The images under corruption ``name``. Raises ValueError for an unknown name or severity."""
    if name not in CORRUPTIONS:
        raise ValueError(f"data.corruptions={name!r}: one of {', '.join(CORRUPTIONS)}")
    if isinstance(severity, bool) or severity not in (1, 2, 3, 4, 5):
        raise ValueError(f"data.severity={severity!r}: 1, 2, 3, 4 or 5")
    if name in COLOUR_ONLY and x.shape[1] != 3:
        raise ValueError(f"data.corruptions={name!r}: does nothing to grey images")
    function, by_severity = CORRUPTIONS[name]
    chosen = by_severity[severity - 1]
    return function(x, generator, *(chosen if isinstance(chosen, tuple) else (chosen,))).clamp(0, 1)


def corruption_names(channels: int, asked: str | Sequence[str] = "all") -> tuple[str, ...]:
    """``asked`` as a tuple; "all" gives every corruption that acts on images of ``channels``
    channels."""
    if asked == "all":
        return tuple(name for name in CORRUPTIONS if channels == 3 or name not in COLOUR_ONLY)
    chosen = (asked,) if isinstance(asked, str) else tuple(asked)
    if not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(f"data.corruptions={list(chosen)}: at least one name, each once")
    return chosen


def filter_channels(x: Tensor, kernel: Tensor) -> Tensor:
    """Each channel through one odd-sided kernel, borders repeated."""
    side = kernel.shape[-1] // 2
    padded = F.pad(x, (side,) * 4, mode="replicate")
    channels = x.shape[1]
    return F.conv2d(padded, kernel.to(x.dtype).expand(channels, 1, *kernel.shape), groups=channels)


def gaussian_kernel(sigma: float) -> Tensor:
    side = max(1, math.ceil(4 * sigma))
    line = (-(torch.arange(-side, side + 1) ** 2) / (2 * sigma**2)).exp()
    kernel = line[:, None] * line[None, :]
    return kernel / kernel.sum()


def _sample_bilinear(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def zoom_images(x: Tensor, zoom: float) -> Tensor:
    theta = torch.tensor([[1 / zoom, 0.0, 0.0], [0.0, 1 / zoom, 0.0]]).expand(len(x), 2, 3)
    return _sample_bilinear(x, F.affine_grid(theta, list(x.shape), align_corners=False))


def smear_images(x: Tensor, radius: int, sigma: float, angles: Tensor) -> Tensor:
    """Each image smeared in its own direction: moved copies, bilinear, added up. angles: (n,) in
    radians."""
    steps, (height, width) = torch.arange(radius + 1), x.shape[2:]
    weights = (-(steps**2) / (2 * sigma**2)).exp()
    out = torch.zeros_like(x)
    theta = torch.zeros(len(x), 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = 1
    for step, weight in zip(steps.tolist(), (weights / weights.sum()).tolist()):
        theta[:, 0, 2], theta[:, 1, 2] = (
            2 * (step * angles.cos()) / width,
            2 * (step * angles.sin()) / height,
        )
        out += weight * _sample_bilinear(
            x, F.affine_grid(theta, list(x.shape), align_corners=False)
        )
    return out


def displace_pixels(x: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Pixel (row, column) of the result is x at (row + dy, column + dx). dx, dy: (n, h, w), in
    pixels; bilinear."""
    height, width = x.shape[2:]
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid = torch.stack(
        ((columns + dx + 0.5) * 2 / width - 1, (rows + dy + 0.5) * 2 / height - 1), dim=-1
    )
    return _sample_bilinear(x, grid.to(x.dtype))


def plasma_clouds(x: Tensor, decay: float, g: Generator) -> Tensor:
    """Clouds (n, 1, h, w) in [0, 1] for images x, by diamond-square on a torus (Fournier, Fussell,
    Carpenter 1982).

    The random part shrinks by ``decay`` with each halving of the step.
    """
    size = 2 ** math.ceil(math.log2(max(x.shape[2:])))
    spread = 1.0
    out = torch.zeros(len(x), size, size)
    step = size

    def wobble_means(four: Tensor) -> Tensor:
        return four / 4 + spread * (2 * torch.rand(four.shape, generator=g) - 1)

    while step >= 2:
        half = step // 2
        corners = out[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        out[:, half::step, half::step] = wobble_means(pairs + pairs.roll(-1, 2))
        centres = out[:, half::step, half::step]
        corners = out[:, ::step, ::step]
        out[:, ::step, half::step] = wobble_means(
            centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)
        )
        out[:, half::step, ::step] = wobble_means(
            centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)
        )
        step = half
        spread = spread / decay
    low = out.amin((1, 2), keepdim=True)
    high = out.amax((1, 2), keepdim=True)
    return ((out - low) / (high - low).clamp(min=1e-12))[:, None, : x.shape[2], : x.shape[3]]


def corruption(
    name: str, *by_severity: Any
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Enters a function (images, generator, parameters) under its name, with the parameters of each
    severity."""

    def enter_function(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        CORRUPTIONS[name] = function, by_severity
        return function

    return enter_function


@corruption("gaussian_noise", 0.04, 0.06, 0.08, 0.09, 0.10)
def _gaussian_noise(x: Tensor, g: Generator, std: float) -> Tensor:
    return x + std * torch.randn(x.shape, generator=g)


@corruption("shot_noise", 500, 250, 100, 75, 50)
def _shot_noise(x: Tensor, g: Generator, photons: int) -> Tensor:
    return torch.poisson(x * photons, generator=g) / photons


@corruption("impulse_noise", 0.01, 0.02, 0.03, 0.05, 0.07)
def _impulse_noise(x: Tensor, g: Generator, amount: float) -> Tensor:
    hit = torch.rand(x.shape, generator=g) < amount
    salt = (torch.rand(x.shape, generator=g) < 0.5).to(x.dtype)
    return torch.where(hit, salt, x)


@corruption("speckle_noise", 0.06, 0.1, 0.12, 0.16, 0.2)
def _speckle_noise(x: Tensor, g: Generator, std: float) -> Tensor:
    return x + x * std * torch.randn(x.shape, generator=g)


@corruption("gaussian_blur", 0.4, 0.6, 0.7, 0.8, 1.0)
def _gaussian_blur(x: Tensor, g: Generator, sigma: float) -> Tensor:
    return filter_channels(x, gaussian_kernel(sigma))


@corruption("defocus_blur", (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
def _defocus_blur(x: Tensor, g: Generator, radius: float, soft: float) -> Tensor:
    axis = torch.arange(-3, 4)
    disk = (axis[:, None] ** 2 + axis[None, :] ** 2 <= radius**2).float()
    smooth = gaussian_kernel(soft)[None, None]
    return filter_channels(
        x, F.conv2d((disk / disk.sum())[None, None], smooth, padding=smooth.shape[-1] - 1)[0, 0]
    )


@corruption("motion_blur", (6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
def _motion_blur(x: Tensor, g: Generator, radius: int, sigma: float) -> Tensor:
    return smear_images(x, radius, sigma, (torch.rand(len(x), generator=g) - 0.5) * (math.pi / 2))


@corruption("zoom_blur", 0.05, 0.10, 0.15, 0.20, 0.25)
def _zoom_blur(x: Tensor, g: Generator, largest: float) -> Tensor:
    zooms = torch.arange(0, largest + 0.005, 0.01)
    total = x + sum(zoom_images(x, 1 + float(zoom)) for zoom in zooms)
    return total / (len(zooms) + 1)


@corruption("brightness", 0.05, 0.1, 0.15, 0.2, 0.3)
def _change_brightness(x: Tensor, g: Generator, more: float) -> Tensor:
    value = x.amax(1, keepdim=True)  # HSV value: raised with hue and saturation kept
    raised = (value + more).clamp(max=1)
    return torch.where(value > 0, x * raised / value.clamp(min=1e-6), raised)


@corruption("contrast", 0.75, 0.5, 0.4, 0.3, 0.15)
def _reduce_contrast(x: Tensor, g: Generator, kept: float) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * kept + mean


@corruption("saturate", (0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))
def _change_saturation(x: Tensor, g: Generator, factor: float, offset: float) -> Tensor:
    value = x.amax(1, keepdim=True)
    low = x.amin(1, keepdim=True)
    saturation = (value - low) / value.clamp(min=1e-6)
    wanted = (saturation * factor + offset).clamp(0, 1)
    return torch.where(saturation > 0, value - (value - x) * wanted / saturation.clamp(min=1e-6), x)


@corruption("pixelate", 0.95, 0.9, 0.85, 0.75, 0.65)
def _coarsen_pixels(x: Tensor, g: Generator, scale: float) -> Tensor:
    height, width = (max(1, int(side * scale)) for side in x.shape[2:])
    return F.interpolate(
        F.adaptive_avg_pool2d(x, (height, width)), size=x.shape[2:], mode="nearest"
    )


@corruption("glass_blur", (0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
def _glass_blur(x: Tensor, g: Generator, sigma: float, times: int) -> Tensor:
    """Neighbouring pixels change places between two blurs."""
    kernel = gaussian_kernel(sigma)
    out, (height, width), images = (
        filter_channels(x, kernel).clone(),
        x.shape[2:],
        torch.arange(len(x)),
    )
    for _ in range(times):
        for row in range(height - 1, 1, -1):
            for column in range(width - 1, 1, -1):
                dy, dx = -torch.randint(0, 2, (2, len(x)), generator=g)
                here = out[:, :, row, column].clone()
                there = out[images, :, row + dy, column + dx].clone()
                out[:, :, row, column], out[images, :, row + dy, column + dx] = there, here
    return filter_channels(out, kernel)


@corruption(
    "elastic_transform",
    (0, 0, 0.08),
    (0.05, 0.2, 0.07),
    (0.08, 0.06, 0.06),
    (0.1, 0.04, 0.05),
    (0.1, 0.03, 0.03),
)
def _elastic_transform(
    x: Tensor, g: Generator, alpha: float, sigma: float, spread: float
) -> Tensor:
    """A random affine map of three points, then smooth random displacements."""
    side = x.shape[-1]
    middle = side // 2
    arm = side // 3
    points = torch.tensor(
        [[middle + arm, middle + arm], [middle + arm, middle - arm], [middle - arm, middle - arm]]
    )
    moved = points + (2 * torch.rand(len(x), 3, 2, generator=g) - 1) * spread * side
    back = torch.linalg.solve(
        torch.cat([moved, torch.ones(len(x), 3, 1)], 2), points.expand(len(x), 3, 2).float()
    )
    rows, columns = torch.meshgrid(torch.arange(x.shape[2]), torch.arange(side), indexing="ij")
    at = torch.stack([columns, rows, torch.ones_like(rows)], -1).float()
    source = torch.einsum("hwk,nkd->nhwd", at, back)
    warped = displace_pixels(x, source[..., 0] - columns, source[..., 1] - rows)
    if not alpha:
        return warped
    waves = filter_channels(
        2 * torch.rand(len(x), 2, *x.shape[2:], generator=g) - 1, gaussian_kernel(sigma * side)
    )
    return displace_pixels(warped, waves[:, 0] * alpha * side, waves[:, 1] * alpha * side)


@corruption("jpeg_compression", 80, 65, 58, 50, 40)
def _jpeg_compression(x: Tensor, g: Generator, quality: int) -> Tensor:
    out = []
    for image in (x.clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).numpy():
        packed = io.BytesIO()
        Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(
            packed, "JPEG", quality=quality
        )
        out.append(np.asarray(Image.open(packed), dtype=np.float32).reshape(image.shape))
    return torch.from_numpy(np.stack(out)).permute(0, 3, 1, 2).to(x.dtype) / 255


@corruption("fog", (0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
def _add_fog(x: Tensor, g: Generator, amount: float, decay: float) -> Tensor:
    top = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * plasma_clouds(x, decay, g)) * top / (top + amount)


@corruption("frost", (1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
def _add_frost(x: Tensor, g: Generator, kept: float, ice: float) -> Tensor:
    """Ridges of clouds are the crystals: bright where the clouds are at their middle value."""
    return kept * x + ice * (1 - (2 * plasma_clouds(x, 1.5, g) - 1).abs())


@corruption(
    "snow",
    (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
    (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
)
def _add_snow(
    x: Tensor,
    g: Generator,
    mean: float,
    std: float,
    zoom: float,
    least: float,
    radius: int,
    sigma: float,
    kept: float,
) -> Tensor:
    flakes = zoom_images(mean + std * torch.randn(len(x), 1, *x.shape[2:], generator=g), zoom)
    flakes = torch.where(flakes < least, 0.0, flakes).clamp(0, 1)
    flakes = smear_images(
        flakes, radius, sigma, -(0.25 + 0.5 * torch.rand(len(x), generator=g)) * math.pi
    )
    pale = torch.maximum(x, x.mean(1, keepdim=True) * 1.5 + 0.5)
    return kept * x + (1 - kept) * pale + flakes + flakes.flip(2, 3)


@corruption(
    "spatter",
    (0.62, 0.1, 0.7, 0.7, 0.5, WATER),
    (0.65, 0.1, 0.8, 0.7, 0.5, WATER),
    (0.65, 0.3, 1.0, 0.69, 0.5, WATER),
    (0.65, 0.1, 0.7, 0.69, 0.6, MUD),
    (0.65, 0.1, 0.5, 0.68, 0.6, MUD),
)
def _add_spatter(
    x: Tensor,
    g: Generator,
    mean: float,
    std: float,
    sigma: float,
    least: float,
    amount: float,
    colour: tuple[float, ...],
) -> Tensor:
    """Drops of water or mud, in its colour, or in that's mean on grey images."""
    liquid = filter_channels(
        mean + std * torch.randn(len(x), 1, *x.shape[2:], generator=g), gaussian_kernel(sigma)
    )
    liquid = torch.where(liquid < least, 0.0, liquid)
    values = torch.tensor(colour, dtype=x.dtype)
    tint = (values if x.shape[1] == 3 else values.mean().expand(x.shape[1])).reshape(1, -1, 1, 1)
    if colour is WATER:
        return x + amount * liquid / liquid.amax((1, 2, 3), keepdim=True).clamp(min=1e-6) * tint
    mud = filter_channels((liquid > least).to(x.dtype), gaussian_kernel(amount))
    mud = torch.where(mud < 0.8, 0.0, mud)
    return x * (1 - mud) + mud * tint

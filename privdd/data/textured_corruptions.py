"""The corruptions that need textures, warps or a codec, with the severities of CIFAR-10-C's code.

Not the original: frost is a texture made of noise, where CIFAR-10-C cuts from photos of ice; spattered water is drawn
without the relief that it takes from detected edges; lengths that are given for 32 pixels scale with the image.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Generator, Tensor

from privdd.data.image_filters import displaced, filtered, gaussian_kernel, streaked, zoomed

WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)


def _glass_blur(x: Tensor, level: int, g: Generator) -> Tensor:
    """Neighbouring pixels change places between two blurs."""
    sigma, times = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[level]
    kernel = gaussian_kernel(sigma)
    out, (height, width), images = filtered(x, kernel).clone(), x.shape[2:], torch.arange(len(x))
    for _ in range(times):
        for row in range(height - 1, 1, -1):
            for column in range(width - 1, 1, -1):
                dy, dx = -torch.randint(0, 2, (2, len(x)), generator=g)
                here, there = out[:, :, row, column].clone(), out[images, :, row + dy, column + dx].clone()
                out[:, :, row, column], out[images, :, row + dy, column + dx] = there, here
    return filtered(out, kernel)


def _elastic_transform(x: Tensor, level: int, g: Generator) -> Tensor:
    """A random affine map of three points, then smooth random displacements."""
    side = x.shape[-1]
    alpha, sigma, spread = ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))[
        level
    ]
    middle, arm = side // 2, side // 3
    points = torch.tensor([[middle + arm, middle + arm], [middle + arm, middle - arm], [middle - arm, middle - arm]])
    moved = points + (2 * torch.rand(len(x), 3, 2, generator=g) - 1) * spread * side
    back = torch.linalg.solve(torch.cat([moved, torch.ones(len(x), 3, 1)], 2), points.expand(len(x), 3, 2).float())
    rows, columns = torch.meshgrid(torch.arange(x.shape[2]), torch.arange(side), indexing="ij")
    at = torch.stack([columns, rows, torch.ones_like(rows)], -1).float()
    source = torch.einsum("hwk,nkd->nhwd", at, back)
    warped = displaced(x, source[..., 0] - columns, source[..., 1] - rows)
    if not alpha:
        return warped
    waves = filtered(2 * torch.rand(len(x), 2, *x.shape[2:], generator=g) - 1, gaussian_kernel(sigma * side))
    return displaced(warped, waves[:, 0] * alpha * side, waves[:, 1] * alpha * side)


def _jpeg_compression(x: Tensor, level: int, g: Generator) -> Tensor:
    quality = (80, 65, 58, 50, 40)[level]
    pixels = (x.clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).numpy()
    out = []
    for image in pixels:
        packed = io.BytesIO()
        Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(packed, "JPEG", quality=quality)
        out.append(np.asarray(Image.open(packed), dtype=np.float32).reshape(image.shape))
    return torch.from_numpy(np.stack(out)).permute(0, 3, 1, 2).to(x.dtype) / 255


def _fog(x: Tensor, level: int, g: Generator) -> Tensor:
    amount, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[level]
    size = 2 ** math.ceil(math.log2(max(x.shape[2:])))
    top = x.amax((1, 2, 3), keepdim=True)
    clouds = plasma(len(x), size, decay, g)[:, None, : x.shape[2], : x.shape[3]]
    return (x + amount * clouds) * top / (top + amount)


def plasma(count: int, size: int, decay: float, g: Generator) -> Tensor:
    """Clouds (count, size, size) in [0, 1] by diamond-square on a torus (Fournier, Fussell, Carpenter 1982).

    size: a power of two; the random part shrinks by ``decay`` with each halving of the step.
    """
    out, step, spread = torch.zeros(count, size, size), size, 1.0
    while step >= 2:
        half = step // 2
        corners = out[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        out[:, half::step, half::step] = _wobbled(pairs + pairs.roll(-1, 2), spread, g)
        centres, corners = out[:, half::step, half::step], out[:, ::step, ::step]
        across = centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)
        out[:, ::step, half::step] = _wobbled(across, spread, g)
        down = centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)
        out[:, half::step, ::step] = _wobbled(down, spread, g)
        step, spread = half, spread / decay
    low, high = out.amin((1, 2), keepdim=True), out.amax((1, 2), keepdim=True)
    return (out - low) / (high - low).clamp(min=1e-12)


def _wobbled(four: Tensor, spread: float, g: Generator) -> Tensor:
    return four / 4 + spread * (2 * torch.rand(four.shape, generator=g) - 1)


def _frost(x: Tensor, level: int, g: Generator) -> Tensor:
    """Ridges of clouds are the crystals: bright where the clouds are at their middle value."""
    kept, ice = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[level]
    size = 2 ** math.ceil(math.log2(max(x.shape[2:])))
    ridges = 1 - (2 * plasma(len(x), size, 1.5, g) - 1).abs()
    return kept * x + ice * ridges[:, None, : x.shape[2], : x.shape[3]]


def _snow(x: Tensor, level: int, g: Generator) -> Tensor:
    mean, std, zoom, least, radius, sigma, kept = (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95), (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    )[level]  # fmt: skip
    flakes = zoomed(mean + std * torch.randn(len(x), 1, *x.shape[2:], generator=g), zoom)
    flakes = torch.where(flakes < least, 0.0, flakes).clamp(0, 1)
    flakes = streaked(flakes, radius, sigma, -(0.25 + 0.5 * torch.rand(len(x), generator=g)) * math.pi)
    pale = torch.maximum(x, x.mean(1, keepdim=True) * 1.5 + 0.5)
    return kept * x + (1 - kept) * pale + flakes + flakes.flip(2, 3)


def _spatter(x: Tensor, level: int, g: Generator) -> Tensor:
    """Drops of water (severities 1 to 3) or mud."""
    mean, std, sigma, least, amount = (
        (0.62, 0.1, 0.7, 0.7, 0.5), (0.65, 0.1, 0.8, 0.7, 0.5), (0.65, 0.3, 1.0, 0.69, 0.5), (0.65, 0.1, 0.7, 0.69, 0.6),
        (0.65, 0.1, 0.5, 0.68, 0.6),
    )[level]  # fmt: skip
    liquid = filtered(mean + std * torch.randn(len(x), 1, *x.shape[2:], generator=g), gaussian_kernel(sigma))
    liquid = torch.where(liquid < least, 0.0, liquid)
    if level < 3:
        drops = amount * liquid / liquid.amax((1, 2, 3), keepdim=True).clamp(min=1e-6)
        return x + drops * _tint(WATER, x)
    mud = filtered((liquid > least).to(x.dtype), gaussian_kernel(amount))
    mud = torch.where(mud < 0.8, 0.0, mud)
    return x * (1 - mud) + mud * _tint(MUD, x)


def _tint(colour: tuple[float, float, float], x: Tensor) -> Tensor:
    """(1, c, 1, 1): the colour, or its mean for grey images."""
    values = torch.tensor(colour, dtype=x.dtype)
    return (values if x.shape[1] == 3 else values.mean().expand(x.shape[1])).reshape(1, -1, 1, 1)


TEXTURED: dict[str, Callable[[Tensor, int, Generator], Tensor]] = {
    "glass_blur": _glass_blur,
    "elastic_transform": _elastic_transform,
    "jpeg_compression": _jpeg_compression,
    "fog": _fog,
    "frost": _frost,
    "snow": _snow,
    "spatter": _spatter,
}

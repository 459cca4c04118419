"""Image corruptions named after CIFAR-10-C (Hendrycks and Dietterich 2019), as plain array code.

All nineteen, with its severities 1 to 5, and the filters and warps that they are made of (borders are repeated). Not the
original: frost is a texture made of noise, where CIFAR-10-C cuts from photos of ice; spattered water is drawn without the
relief that it takes from detected edges; lengths that are given for 32 pixels scale with the image. Images are (n, c, h, w)
in [0, 1]; every draw comes from the generator. Pixel values are clipped to [0, 1].
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Generator, Tensor
from torch.nn import functional as F


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


def disk_kernel(radius: float) -> Tensor:
    axis = torch.arange(-3, 4)
    disk = (axis[:, None] ** 2 + axis[None, :] ** 2 <= radius**2).float()
    return disk / disk.sum()


def convolve_kernels(kernel: Tensor, by: Tensor) -> Tensor:
    side = by.shape[-1] - 1
    return F.conv2d(kernel[None, None], by[None, None], padding=side)[0, 0]


def shift_images(x: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Each image moved by its own (dx, dy) pixels, bilinear, borders repeated."""
    height, width = x.shape[2:]
    theta = torch.zeros(len(x), 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = 1
    theta[:, 0, 2], theta[:, 1, 2] = 2 * dx / width, 2 * dy / height
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def zoom_images(x: Tensor, zoom: float) -> Tensor:
    theta = torch.tensor([[1 / zoom, 0.0, 0.0], [0.0, 1 / zoom, 0.0]]).expand(len(x), 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def smear_images(x: Tensor, radius: int, sigma: float, angles: Tensor) -> Tensor:
    """Each image smeared in its own direction. angles: (n,) in radians."""
    steps = torch.arange(radius + 1)
    weights = (-(steps**2) / (2 * sigma**2)).exp()
    out = torch.zeros_like(x)
    for step, weight in zip(steps.tolist(), (weights / weights.sum()).tolist()):
        out += weight * shift_images(x, step * angles.cos(), step * angles.sin())
    return out


def displace_pixels(x: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Pixel (row, column) of the result is x at (row + dy, column + dx). dx, dy: (n, h, w), in pixels; bilinear."""
    height, width = x.shape[2:]
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid = torch.stack(((columns + dx + 0.5) * 2 / width - 1, (rows + dy + 0.5) * 2 / height - 1), dim=-1)
    return F.grid_sample(x, grid.to(x.dtype), mode="bilinear", padding_mode="border", align_corners=False)


WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)


def _glass_blur(x: Tensor, level: int, g: Generator) -> Tensor:
    """Neighbouring pixels change places between two blurs."""
    sigma, times = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[level]
    kernel = gaussian_kernel(sigma)
    out, (height, width), images = filter_channels(x, kernel).clone(), x.shape[2:], torch.arange(len(x))
    for _ in range(times):
        for row in range(height - 1, 1, -1):
            for column in range(width - 1, 1, -1):
                dy, dx = -torch.randint(0, 2, (2, len(x)), generator=g)
                here, there = out[:, :, row, column].clone(), out[images, :, row + dy, column + dx].clone()
                out[:, :, row, column], out[images, :, row + dy, column + dx] = there, here
    return filter_channels(out, kernel)


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
    warped = displace_pixels(x, source[..., 0] - columns, source[..., 1] - rows)
    if not alpha:
        return warped
    waves = filter_channels(2 * torch.rand(len(x), 2, *x.shape[2:], generator=g) - 1, gaussian_kernel(sigma * side))
    return displace_pixels(warped, waves[:, 0] * alpha * side, waves[:, 1] * alpha * side)


def _jpeg_compression(x: Tensor, level: int, g: Generator) -> Tensor:
    quality = (80, 65, 58, 50, 40)[level]
    pixels = (x.clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).numpy()
    out = []
    for image in pixels:
        packed = io.BytesIO()
        Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(packed, "JPEG", quality=quality)
        out.append(np.asarray(Image.open(packed), dtype=np.float32).reshape(image.shape))
    return torch.from_numpy(np.stack(out)).permute(0, 3, 1, 2).to(x.dtype) / 255


def _add_fog(x: Tensor, level: int, g: Generator) -> Tensor:
    amount, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[level]
    size = 2 ** math.ceil(math.log2(max(x.shape[2:])))
    top = x.amax((1, 2, 3), keepdim=True)
    clouds = plasma_clouds(len(x), size, decay, g)[:, None, : x.shape[2], : x.shape[3]]
    return (x + amount * clouds) * top / (top + amount)


def plasma_clouds(count: int, size: int, decay: float, g: Generator) -> Tensor:
    """Clouds (count, size, size) in [0, 1] by diamond-square on a torus (Fournier, Fussell, Carpenter 1982).

    size: a power of two; the random part shrinks by ``decay`` with each halving of the step.
    """
    out, step, spread = torch.zeros(count, size, size), size, 1.0
    while step >= 2:
        half = step // 2
        corners = out[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        out[:, half::step, half::step] = _add_wobble(pairs + pairs.roll(-1, 2), spread, g)
        centres, corners = out[:, half::step, half::step], out[:, ::step, ::step]
        across = centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)
        out[:, ::step, half::step] = _add_wobble(across, spread, g)
        down = centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)
        out[:, half::step, ::step] = _add_wobble(down, spread, g)
        step, spread = half, spread / decay
    low, high = out.amin((1, 2), keepdim=True), out.amax((1, 2), keepdim=True)
    return (out - low) / (high - low).clamp(min=1e-12)


def _add_wobble(four: Tensor, spread: float, g: Generator) -> Tensor:
    return four / 4 + spread * (2 * torch.rand(four.shape, generator=g) - 1)


def _add_frost(x: Tensor, level: int, g: Generator) -> Tensor:
    """Ridges of clouds are the crystals: bright where the clouds are at their middle value."""
    kept, ice = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[level]
    size = 2 ** math.ceil(math.log2(max(x.shape[2:])))
    ridges = 1 - (2 * plasma_clouds(len(x), size, 1.5, g) - 1).abs()
    return kept * x + ice * ridges[:, None, : x.shape[2], : x.shape[3]]


def _add_snow(x: Tensor, level: int, g: Generator) -> Tensor:
    mean, std, zoom, least, radius, sigma, kept = (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95), (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    )[level]  # fmt: skip
    flakes = zoom_images(mean + std * torch.randn(len(x), 1, *x.shape[2:], generator=g), zoom)
    flakes = torch.where(flakes < least, 0.0, flakes).clamp(0, 1)
    flakes = smear_images(flakes, radius, sigma, -(0.25 + 0.5 * torch.rand(len(x), generator=g)) * math.pi)
    pale = torch.maximum(x, x.mean(1, keepdim=True) * 1.5 + 0.5)
    return kept * x + (1 - kept) * pale + flakes + flakes.flip(2, 3)


def _add_spatter(x: Tensor, level: int, g: Generator) -> Tensor:
    """Drops of water (severities 1 to 3) or mud."""
    mean, std, sigma, least, amount = (
        (0.62, 0.1, 0.7, 0.7, 0.5), (0.65, 0.1, 0.8, 0.7, 0.5), (0.65, 0.3, 1.0, 0.69, 0.5), (0.65, 0.1, 0.7, 0.69, 0.6),
        (0.65, 0.1, 0.5, 0.68, 0.6),
    )[level]  # fmt: skip
    liquid = filter_channels(mean + std * torch.randn(len(x), 1, *x.shape[2:], generator=g), gaussian_kernel(sigma))
    liquid = torch.where(liquid < least, 0.0, liquid)
    if level < 3:
        drops = amount * liquid / liquid.amax((1, 2, 3), keepdim=True).clamp(min=1e-6)
        return x + drops * _tint_channels(WATER, x)
    mud = filter_channels((liquid > least).to(x.dtype), gaussian_kernel(amount))
    mud = torch.where(mud < 0.8, 0.0, mud)
    return x * (1 - mud) + mud * _tint_channels(MUD, x)


def _tint_channels(colour: tuple[float, float, float], x: Tensor) -> Tensor:
    """(1, c, 1, 1): the colour, or its mean for grey images."""
    values = torch.tensor(colour, dtype=x.dtype)
    return (values if x.shape[1] == 3 else values.mean().expand(x.shape[1])).reshape(1, -1, 1, 1)


TEXTURED_CORRUPTIONS: dict[str, Callable[[Tensor, int, Generator], Tensor]] = {
    "glass_blur": _glass_blur,
    "elastic_transform": _elastic_transform,
    "jpeg_compression": _jpeg_compression,
    "fog": _add_fog,
    "frost": _add_frost,
    "snow": _add_snow,
    "spatter": _add_spatter,
}


Corruption = Callable[[Tensor, int, Generator], Tensor]


def corrupt_images(name: str, x: Tensor, severity: int, generator: Generator) -> Tensor:
    """The images under corruption ``name``. Raises ValueError for an unknown name or severity."""
    if name not in CORRUPTIONS:
        raise ValueError(f"data.corruptions={name!r}: one of {', '.join(CORRUPTIONS)}")
    if isinstance(severity, bool) or severity not in (1, 2, 3, 4, 5):
        raise ValueError(f"data.severity={severity!r}: 1, 2, 3, 4 or 5")
    if name in COLOUR_ONLY and x.shape[1] != 3:
        raise ValueError(f"data.corruptions={name!r}: does nothing to grey images")
    return CORRUPTIONS[name](x, severity - 1, generator).clamp(0, 1)


def corruption_names(channels: int, asked: str | Sequence[str] = "all") -> tuple[str, ...]:
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
    return filter_channels(x, gaussian_kernel((0.4, 0.6, 0.7, 0.8, 1.0)[level]))


def _defocus_blur(x: Tensor, level: int, g: Generator) -> Tensor:
    radius, soft = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[level]
    return filter_channels(x, convolve_kernels(disk_kernel(radius), gaussian_kernel(soft)))


def _motion_blur(x: Tensor, level: int, g: Generator) -> Tensor:
    radius, sigma = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))[level]
    return smear_images(x, radius, sigma, (torch.rand(len(x), generator=g) - 0.5) * (math.pi / 2))


def _zoom_blur(x: Tensor, level: int, g: Generator) -> Tensor:
    largest = (0.05, 0.10, 0.15, 0.20, 0.25)[level]
    zooms = torch.arange(0, largest + 0.005, 0.01)
    total = x + sum(zoom_images(x, 1 + float(zoom)) for zoom in zooms)
    return total / (len(zooms) + 1)


def _change_brightness(x: Tensor, level: int, g: Generator) -> Tensor:
    value = x.amax(1, keepdim=True)  # HSV value: raised with hue and saturation kept
    raised = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[level]).clamp(max=1)
    return torch.where(value > 0, x * raised / value.clamp(min=1e-6), raised)


def _reduce_contrast(x: Tensor, level: int, g: Generator) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[level] + mean


def _change_saturation(x: Tensor, level: int, g: Generator) -> Tensor:
    factor, offset = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))[level]
    value, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    saturation = (value - low) / value.clamp(min=1e-6)
    wanted = (saturation * factor + offset).clamp(0, 1)
    return torch.where(saturation > 0, value - (value - x) * wanted / saturation.clamp(min=1e-6), x)


def _coarsen_pixels(x: Tensor, level: int, g: Generator) -> Tensor:
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
    "brightness": _change_brightness,
    "contrast": _reduce_contrast,
    "saturate": _change_saturation,
    "pixelate": _coarsen_pixels,
    **TEXTURED_CORRUPTIONS,
}
COLOUR_ONLY = ("saturate",)

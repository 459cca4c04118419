"""Differentiable siamese augmentation: one random transformation, applied alike to every image.

Zhao and Bilen, "Dataset Condensation with Differentiable Siamese Augmentation" (ICML 2021): one
operation is drawn per call and applied with the same numbers to real and synthetic images. Every
number comes from the generator that the caller hands in: the published code reseeds the global
generator from a clock, after which any noise drawn from it can be guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

CROP = 0.125  # largest shift, as a part of the side
CUTOUT = 0.5  # side of the erased square, as a part of the side
SCALE = 1.2  # largest stretch; the smallest is its inverse
ROTATE = 15.0  # degrees either way
BRIGHTNESS = 1.0  # width of the interval of additive shifts
SATURATION = 2.0  # largest factor about the mean over channels
CONTRAST = 0.5  # the factor about the image mean lies in [CONTRAST, CONTRAST + 1]
FLIP = 0.5  # probability

COLOUR_STRATEGY = "color_crop_cutout_flip_scale_rotate"
DIGIT_STRATEGY = "color_crop_cutout_scale_rotate"  # digits must not be mirrored


def _shift_image(x: Tensor, rows: int, columns: int) -> Tensor:
    """x moved down by ``rows`` and right by ``columns``, zeros coming in."""
    h, w = x.shape[-2:]
    padded = F.pad(x, (max(columns, 0), max(-columns, 0), max(rows, 0), max(-rows, 0)))
    top, left = max(-rows, 0), max(-columns, 0)
    return padded[..., top : top + h, left : left + w]


def _erase_square(x: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    keep = torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device)
    keep[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = 0
    return x * keep


def _apply_affine(x: Tensor, a: float, b: float, c: float, d: float) -> Tensor:
    """Sampled at (a u + b v, c u + d v) in coordinates of [-1, 1], bilinear, zeros outside."""
    matrix = torch.tensor([[a, b, 0.0], [c, d, 0.0]], dtype=x.dtype, device=x.device)
    grid = F.affine_grid(matrix.expand(1, 2, 3), [1, *x.shape[1:]], align_corners=False)
    return sample_grid(x, grid[0])


def _change_colours(x: Tensor, brightness: float, saturation: float, contrast: float) -> Tensor:
    x = x + brightness
    grey = x.mean(1, keepdim=True)
    x = (x - grey) * saturation + grey
    mean = x.mean((1, 2, 3), keepdim=True)
    return (x - mean) * contrast + mean


@dataclass(frozen=True)
class Transform:
    """One drawn operation: a function of images (b, c, h, w) that treats each image alone."""

    name: str = "none"
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        return _OPERATIONS[self.name][0](x, **self.numbers)


def parse_strategy(strategy: str) -> tuple[str, ...]:
    """The operations named in ``strategy`` ("a_b_c", or "none").

    Raises ValueError for an unknown operation.
    """
    names = tuple(strategy.split("_"))
    if unknown := [name for name in names if name not in _OPERATIONS]:
        raise ValueError(f"augment={strategy!r}: unknown {unknown}; allowed are {sorted(_OPERATIONS)} joined by '_'")
    return names


def draw_transform(strategy: str, shape: tuple[int, int, int], generator: torch.Generator) -> Transform:
    """One operation of ``strategy`` with its numbers, for images of ``shape`` (c, h, w)."""
    names = parse_strategy(strategy)
    name = names[_draw_integer(0, len(names) - 1, generator)]
    return Transform(name, _OPERATIONS[name][1](shape[1], shape[2], generator))


def _draw_integer(low: int, high: int, generator: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator, device=generator.device))


def _draw_uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, device=generator.device))


def _draw_crop(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    rows, columns = int(h * CROP + 0.5), int(w * CROP + 0.5)
    return {"rows": _draw_integer(-rows, rows, g), "columns": _draw_integer(-columns, columns, g)}


def _draw_cutout(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    """A square whose centre is uniform over the image, so that it may hang over the edge."""
    height, width = int(h * CUTOUT + 0.5), int(w * CUTOUT + 0.5)
    top, left = _draw_integer(0, h - 1, g) - height // 2, _draw_integer(0, w - 1, g) - width // 2
    return {"top": top, "left": left, "height": height, "width": width}


def _draw_scale(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    return {"a": _draw_uniform(1 / SCALE, SCALE, g), "b": 0.0, "c": 0.0, "d": _draw_uniform(1 / SCALE, SCALE, g)}


def _draw_rotation(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    angle = torch.deg2rad(torch.tensor(_draw_uniform(-ROTATE, ROTATE, g), dtype=torch.float64))
    cosine, sine = float(angle.cos()), float(angle.sin())
    return {"a": cosine, "b": -sine, "c": sine, "d": cosine}


def _draw_colours(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    return {
        "brightness": _draw_uniform(-BRIGHTNESS / 2, BRIGHTNESS / 2, g),
        "saturation": _draw_uniform(0, SATURATION, g),
        "contrast": _draw_uniform(CONTRAST, CONTRAST + 1, g),
    }


# operation -> (what it does to images with its numbers, how its numbers are drawn for images of height h and width w)
_OPERATIONS: Mapping[str, tuple[Callable[..., Tensor], Callable[[int, int, torch.Generator], dict[str, float]]]] = {
    "none": (lambda x: x, lambda h, w, g: {}),
    "color": (_change_colours, _draw_colours),
    "crop": (_shift_image, _draw_crop),
    "cutout": (_erase_square, _draw_cutout),
    "flip": (lambda x, flip: x.flip(-1) if flip else x, lambda h, w, g: {"flip": _draw_uniform(0, 1, g) < FLIP}),
    "scale": (_apply_affine, _draw_scale),
    "rotate": (_apply_affine, _draw_rotation),
}


def sample_grid(x: Tensor, grid: Tensor) -> Tensor:
    """``F.grid_sample`` of x (n, c, h, w) at one ``grid`` (h, w, 2) for all: bilinear, zeros outside, corners not aligned.

    Off the CPU as a weighted sum of four selections, whose gradient is repeatable.
    """
    if x.device.type == "cpu":
        return F.grid_sample(x, grid.expand(len(x), -1, -1, -1), mode="bilinear", align_corners=False)
    height, width = x.shape[-2:]
    across, down = ((grid[..., 0] + 1) * width - 1) / 2, ((grid[..., 1] + 1) * height - 1) / 2
    left, top, total = across.floor(), down.floor(), torch.zeros_like(x)
    for column in (left, left + 1):
        for row in (top, top + 1):
            share = (1 - (across - column).abs()) * (1 - (down - row).abs())
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            at = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
            total = total + x.flatten(2).index_select(2, at.long().flatten()).view_as(x) * (share * inside)
    return total

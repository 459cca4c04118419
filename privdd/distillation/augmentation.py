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

from attacks.repeatable import sampled

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


def _shifted(x: Tensor, rows: int, columns: int) -> Tensor:
    """x moved down by ``rows`` and right by ``columns``, zeros coming in."""
    h, w = x.shape[-2:]
    padded = F.pad(x, (max(columns, 0), max(-columns, 0), max(rows, 0), max(-rows, 0)))
    top, left = max(-rows, 0), max(-columns, 0)
    return padded[..., top : top + h, left : left + w]


def _erased(x: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    keep = torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device)
    keep[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = 0
    return x * keep


def _affine(x: Tensor, a: float, b: float, c: float, d: float) -> Tensor:
    """Sampled at (a u + b v, c u + d v) in coordinates of [-1, 1], bilinear, zeros outside."""
    matrix = torch.tensor([[a, b, 0.0], [c, d, 0.0]], dtype=x.dtype, device=x.device)
    grid = F.affine_grid(matrix.expand(1, 2, 3), [1, *x.shape[1:]], align_corners=False)
    return sampled(x, grid[0])


def _coloured(x: Tensor, brightness: float, saturation: float, contrast: float) -> Tensor:
    x = x + brightness
    grey = x.mean(1, keepdim=True)
    x = (x - grey) * saturation + grey
    mean = x.mean((1, 2, 3), keepdim=True)
    return (x - mean) * contrast + mean


def _flipped(x: Tensor, flip: bool) -> Tensor:
    return x.flip(-1) if flip else x


def _identity(x: Tensor) -> Tensor:
    return x


_APPLY: Mapping[str, Callable[..., Tensor]] = {
    "none": _identity,
    "color": _coloured,
    "crop": _shifted,
    "cutout": _erased,
    "flip": _flipped,
    "scale": _affine,
    "rotate": _affine,
}


@dataclass(frozen=True)
class Transform:
    """One drawn operation: a function of images (b, c, h, w) that treats each image alone."""

    name: str = "none"
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        return _APPLY[self.name](x, **self.numbers)


def operations(strategy: str) -> tuple[str, ...]:
    """The operations named in ``strategy`` ("a_b_c", or "none").

    Raises ValueError for an unknown operation.
    """
    names = tuple(strategy.split("_"))
    if unknown := [name for name in names if name not in _APPLY]:
        raise ValueError(f"augment={strategy!r}: unknown {unknown}; allowed are {sorted(_APPLY)} joined by '_'")
    return names


def draw(strategy: str, shape: tuple[int, int, int], generator: torch.Generator) -> Transform:
    """One operation of ``strategy`` with its numbers, for images of ``shape`` (c, h, w)."""
    names = operations(strategy)
    name = names[_integer(0, len(names) - 1, generator)]
    return Transform(name, _NUMBERS[name](shape[1], shape[2], generator))


def _integer(low: int, high: int, generator: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator, device=generator.device))


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, device=generator.device))


def _crop(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    rows, columns = int(h * CROP + 0.5), int(w * CROP + 0.5)
    return {"rows": _integer(-rows, rows, g), "columns": _integer(-columns, columns, g)}


def _cutout(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    """A square whose centre is uniform over the image, so that it may hang over the edge."""
    height, width = int(h * CUTOUT + 0.5), int(w * CUTOUT + 0.5)
    top, left = _integer(0, h - 1, g) - height // 2, _integer(0, w - 1, g) - width // 2
    return {"top": top, "left": left, "height": height, "width": width}


def _scale(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    return {"a": _uniform(1 / SCALE, SCALE, g), "b": 0.0, "c": 0.0, "d": _uniform(1 / SCALE, SCALE, g)}


def _rotate(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    angle = torch.deg2rad(torch.tensor(_uniform(-ROTATE, ROTATE, g), dtype=torch.float64))
    cosine, sine = float(angle.cos()), float(angle.sin())
    return {"a": cosine, "b": -sine, "c": sine, "d": cosine}


def _colour(h: int, w: int, g: torch.Generator) -> dict[str, float]:
    return {
        "brightness": _uniform(-BRIGHTNESS / 2, BRIGHTNESS / 2, g),
        "saturation": _uniform(0, SATURATION, g),
        "contrast": _uniform(CONTRAST, CONTRAST + 1, g),
    }


_NUMBERS: Mapping[str, Callable[[int, int, torch.Generator], dict[str, float]]] = {
    "none": lambda h, w, g: {},
    "color": _colour,
    "crop": _crop,
    "cutout": _cutout,
    "flip": lambda h, w, g: {"flip": _uniform(0, 1, g) < FLIP},
    "scale": _scale,
    "rotate": _rotate,
}

"""Digit domains that can be made offline: digits over photo patches, and digits typeset in fonts.

They stand in for MNIST-M (Ganin et al. 2016) and SynthDigits and are named for what they are:
"MNIST-M-like" and "font digits".
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SIDE = 28
FONTS = (
    "DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSans-Oblique.ttf", "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf",
    "DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf", "DejaVuSerif-Italic.ttf",
)  # fmt: skip


@lru_cache(maxsize=1)
def photos() -> tuple[tuple[str, ...], tuple[NDArray[np.floating], ...]]:
    """Natural photos that installed packages ship: their names, and images (h, w, 3) in [0, 1].

    scikit-learn's china and flower; astronaut, coffee and chelsea too where scikit-image is installed.
    """
    from sklearn.datasets import load_sample_images

    found = dict(zip(("china", "flower"), load_sample_images().images))
    if importlib.util.find_spec("skimage") is not None:
        from skimage import data as pictures

        found |= {name: getattr(pictures, name)() for name in ("astronaut", "coffee", "chelsea")}
    images = tuple(np.asarray(image, np.float32)[..., :3] / 255 for image in found.values())
    return tuple(found), images


def on_photos(digits: Tensor, rng: np.random.Generator) -> Tensor:
    """|photo patch - digit| (Ganin et al. 2016, section 4): (n, 1, s, s) -> (n, 3, s, s), both in [0, 1]."""
    _, images = photos()
    side = digits.shape[-1]
    which = rng.integers(len(images), size=len(digits))
    patches = np.empty((len(digits), side, side, 3), np.float32)
    for at, image in enumerate(which):
        height, width = images[image].shape[:2]
        top, left = rng.integers(height - side + 1), rng.integers(width - side + 1)
        patches[at] = images[image][top : top + side, left : left + side]
    return (torch.from_numpy(patches).permute(0, 3, 1, 2) - digits).abs()


def font_digits(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Digits in eight DejaVu fonts, random size, place, tilt (15 degrees) and colours: (n, 3, 28, 28), (n,)."""
    labels = rng.integers(10, size=count)
    masks = np.stack([_glyph(int(label), rng) for label in labels]) if count else np.empty((0, SIDE, SIDE), np.float32)
    ink, paper = _colours(count, rng)
    shade = masks[:, None]
    images = shade * ink + (1 - shade) * paper
    images = np.clip(images + rng.normal(0, 0.05, images.shape), 0, 1)
    return torch.from_numpy(images.astype(np.float32)), torch.from_numpy(labels)


@lru_cache(maxsize=256)
def _font(name: str, size: int):  # type: ignore[no-untyped-def]  # Pillow's font type
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/{name}", size)


def _glyph(digit: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """One digit as a mask (28, 28) in [0, 1]."""
    from PIL import Image, ImageDraw

    font = _font(FONTS[rng.integers(len(FONTS))], int(rng.integers(16, 27)))
    centre = tuple(SIDE / 2 + rng.uniform(-2.5, 2.5, size=2))
    canvas = Image.new("L", (SIDE, SIDE))
    ImageDraw.Draw(canvas).text(centre, str(digit), fill=255, font=font, anchor="mm")
    tilted = canvas.rotate(float(rng.uniform(-15, 15)), resample=Image.Resampling.BILINEAR)
    return np.asarray(tilted, np.float32) / 255


def _colours(count: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ink and paper (n, 3, 1, 1) whose mean brightness differs by at least 0.3."""
    paper = rng.uniform(0, 1, (count, 3))
    gap = rng.uniform(0.3, 0.5, (count, 1))
    sign = np.where(paper.mean(1, keepdims=True) > 0.5, -1.0, 1.0)
    target = paper.mean(1, keepdims=True) + sign * gap
    ink = rng.uniform(-0.1, 0.1, (count, 3))
    ink = np.clip(target + ink - ink.mean(1, keepdims=True), 0, 1)
    return ink[..., None, None], paper[..., None, None]

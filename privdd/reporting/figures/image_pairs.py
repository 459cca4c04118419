"""Images beside their reconstructions, with the PSNR of each pair."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from attacks import images
from privdd.reporting import wording
from privdd.reporting.figures.canvas import figure_canvas
from privdd.reporting.figures.style import INK


def png_uri(image: np.ndarray) -> str:
    """One image (c, h, w) in [0, 1] as a data URI of a PNG file; c is 1 or 3."""
    pixels = np.round(np.clip(np.nan_to_num(image), 0, 1) * 255).astype(np.uint8)
    rows_first = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(rows_first).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def psnr_of_arrays(real: np.ndarray, reconstructed: np.ndarray) -> np.ndarray:
    """``attacks.images.psnr`` of arrays."""
    return images.psnr(torch.as_tensor(real), torch.as_tensor(reconstructed)).numpy()


def order_by_psnr(real: np.ndarray, reconstructed: np.ndarray) -> np.ndarray:
    """Positions sorted by falling PSNR."""
    return np.argsort(-psnr_of_arrays(real, reconstructed), kind="stable")


def draw_image_pairs(real: np.ndarray, reconstructed: np.ndarray, limit: int = 8) -> Figure:
    """Real images (b, c, h, w) above their reconstructions, with the PSNR of each pair; best
    first."""
    order = order_by_psnr(real, reconstructed)[:limit]
    quality = psnr_of_arrays(real, reconstructed)
    tall = real.shape[2] / real.shape[3]
    with figure_canvas(0.8 * len(order) + 0.6, 1.6 * tall + 0.5) as (figure, axes):
        for column, index in enumerate(order):
            _draw_image(axes, real[index], column, tall + 0.06)
            _draw_image(axes, reconstructed[index], column, 0)
            axes.text(
                column + 0.47,
                -0.06,
                wording.format_decibel(float(quality[index])),
                ha="center",
                va="top",
                fontsize=8,
            )
        axes.set(xlim=(0, len(order)), ylim=(-0.2, 2 * tall + 0.06), aspect="equal", xticks=[])
        axes.set_yticks([1.5 * tall + 0.06, 0.5 * tall], ["original", "reconstruction"])
        axes.tick_params(length=0, labelcolor=INK)
        axes.grid(False)
        axes.spines[:].set_visible(False)
    return figure


def _draw_image(axes: Axes, image: np.ndarray, left: float, bottom: float) -> None:
    pixels = np.clip(image, 0, 1).transpose(1, 2, 0)
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    place = (left, left + 0.94, bottom, bottom + 0.94 * image.shape[1] / image.shape[2])
    axes.imshow(pixels, extent=place, interpolation="none")

"""Filters and warps of images (n, c, h, w) that corruptions are made of; borders are repeated."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def filtered(x: Tensor, kernel: Tensor) -> Tensor:
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


def disk(radius: float) -> Tensor:
    axis = torch.arange(-3, 4)
    disk = (axis[:, None] ** 2 + axis[None, :] ** 2 <= radius**2).float()
    return disk / disk.sum()


def smoothed(kernel: Tensor, by: Tensor) -> Tensor:
    side = by.shape[-1] - 1
    return F.conv2d(kernel[None, None], by[None, None], padding=side)[0, 0]


def shifted(x: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Each image moved by its own (dx, dy) pixels, bilinear, borders repeated."""
    height, width = x.shape[2:]
    theta = torch.zeros(len(x), 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = 1
    theta[:, 0, 2], theta[:, 1, 2] = 2 * dx / width, 2 * dy / height
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def zoomed(x: Tensor, zoom: float) -> Tensor:
    theta = torch.tensor([[1 / zoom, 0.0, 0.0], [0.0, 1 / zoom, 0.0]]).expand(len(x), 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def streaked(x: Tensor, radius: int, sigma: float, angles: Tensor) -> Tensor:
    """Each image smeared in its own direction. angles: (n,) in radians."""
    steps = torch.arange(radius + 1)
    weights = (-(steps**2) / (2 * sigma**2)).exp()
    out = torch.zeros_like(x)
    for step, weight in zip(steps.tolist(), (weights / weights.sum()).tolist()):
        out += weight * shifted(x, step * angles.cos(), step * angles.sin())
    return out


def displaced(x: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Pixel (row, column) of the result is x at (row + dy, column + dx). dx, dy: (n, h, w), in pixels; bilinear."""
    height, width = x.shape[2:]
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid = torch.stack(((columns + dx + 0.5) * 2 / width - 1, (rows + dy + 0.5) * 2 / height - 1), dim=-1)
    return F.grid_sample(x, grid.to(x.dtype), mode="bilinear", padding_mode="border", align_corners=False)

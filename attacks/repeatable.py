"""The same bits each time on a GPU: its fastest kernels add in an order that changes from call to call.

Whoever repeats a computation and compares, as tests of a guarantee do, or resumes a run, needs that. ``repeatable`` has
torch take kernels of a fixed order, and fails where there is none; for two of those, a form that has one stands here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = (":4096:8", ":16:8")  # sizes of its memory at which a GPU's products of matrices add in a fixed order


@contextmanager
def repeatable(device: torch.device | str) -> Iterator[None]:
    """On a GPU: kernels of a fixed order, and float32 in full (TF32 keeps 10 bits of 23), as on the CPU.

    Raises torch's RuntimeError, inside, at an operation that has no such kernel.
    """
    if torch.device(device).type == "cpu":
        yield
        return
    os.environ.setdefault(WORKSPACE, FIXED[0])  # read at the first product of matrices
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), products.allow_tf32, convolutions.allow_tf32
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory  # a kernel more for every new tensor
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False
    products.allow_tf32 = convolutions.allow_tf32 = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        memory.fill_uninitialized_memory = filled
        products.allow_tf32, convolutions.allow_tf32 = before[1:]


def average_pool(x: Tensor, size: int | tuple[int, int]) -> Tensor:
    """``F.adaptive_avg_pool2d``: (..., h, w) -> (..., *size); off the CPU as two products, whose gradient is repeatable."""
    if x.device.type == "cpu":
        return F.adaptive_avg_pool2d(x, size)
    rows, columns = (size, size) if isinstance(size, int) else size
    return _shares(x, x.shape[-2], rows) @ x @ _shares(x, x.shape[-1], columns).T


def _shares(like: Tensor, length: int, cells: int) -> Tensor:
    """(cells, length): what each place counts in the average of each cell; cells may overlap by one place."""
    at, cell = (torch.arange(count, device=like.device) for count in (length, cells))
    cell = cell.unsqueeze(1)
    first, last = cell * length // cells, ((cell + 1) * length + cells - 1) // cells  # one past the last
    inside = (at >= first) & (at < last)
    return (inside / inside.sum(1, keepdim=True)).to(like)


def sampled(x: Tensor, grid: Tensor) -> Tensor:
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

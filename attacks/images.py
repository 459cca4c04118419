"""Image similarity, the assignment of reconstructions to records, and confidence intervals.

Images are (b, c, h, w) in [0, 1]; every metric returns (b,). ``METRIC_DIRECTIONS`` says which way is better
for the attacker: LPIPS is a distance, so smaller means more alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.arrays import accepts_numpy
from attacks.lpips import LpipsTrunk, lpips_distance

METRIC_DIRECTIONS = {
    "psnr": "higher is more alike",
    "ssim": "higher is more alike",
    "lpips": "lower is more alike",
    "identified": "higher is more leak",
}
MAX_PSNR = 200.0  # dB of identical images: float32 cannot tell them apart, and a mean must stay finite


def _check_pair(a: Tensor, b: Tensor) -> None:
    if a.ndim != 4 or a.shape != b.shape:
        raise ValueError(f"images have shapes {tuple(a.shape)} and {tuple(b.shape)}: two equal (b, c, h, w) are needed")


@accepts_numpy
def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB with range 1, at most 200. (b, c, h, w) x 2 -> (b,)."""
    _check_pair(a, b)
    error = (a.clamp(0, 1).double() - b.clamp(0, 1).double()).square().flatten(1).mean(1)
    return (-10 * error.clamp_min(10 ** (-MAX_PSNR / 10)).log10()).float()


def _gaussian_window(sigma: float, like: Tensor) -> Tensor:
    """A Gaussian of 2 * int(3.5 sigma + 0.5) + 1 points that sums to one."""
    radius = int(3.5 * sigma + 0.5)
    points = torch.arange(-radius, radius + 1, dtype=like.dtype, device=like.device)
    weights = (-(points**2) / (2 * sigma**2)).exp()
    return weights / weights.sum()


def _local_mean(images: Tensor, window: Tensor) -> Tensor:
    """Windowed means where the window fits inside the image."""
    c = images.shape[1]
    across = F.conv2d(images, window.view(1, 1, 1, -1).expand(c, -1, -1, -1), groups=c)
    return F.conv2d(across, window.view(1, 1, -1, 1).expand(c, -1, -1, -1), groups=c)


@accepts_numpy
def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity (Wang et al. 2004), Gaussian window of sigma 1.5 (11 x 11), range 1.

    Averaged over the places where the window fits. Images with a side below 12 pixels take sigma
    0.5 (5 x 5). Raises ValueError for sides below 5.
    """
    _check_pair(a, b)
    side = min(a.shape[-2:])
    if side < 5:
        raise ValueError(f"images have a side of {side} pixels: at least 5 are needed")
    x, y = a.clamp(0, 1).double(), b.clamp(0, 1).double()
    window = _gaussian_window(1.5 if side >= 12 else 0.5, x)
    mx, my, xx, yy, xy = (_local_mean(v, window) for v in (x, y, x * x, y * y, x * y))
    top = (2 * mx * my + 0.01**2) * (2 * (xy - mx * my) + 0.03**2)
    bottom = (mx**2 + my**2 + 0.01**2) * (xx - mx**2 + yy - my**2 + 0.03**2)
    return (top / bottom).flatten(1).mean(1).float()


@accepts_numpy
def lpips(a: Tensor, b: Tensor, trunk: LpipsTrunk | None = None) -> Tensor:
    """Learned perceptual distance (Zhang et al. 2018), AlexNet, version 0.1; smaller is more alike.

    Rule: gray is repeated to RGB, [0, 1] goes to [-1, 1], bilinear to 64 x 64. trunk: by default
    the pretrained weights found on this machine; raises LpipsUnavailable where there are none.
    """
    _check_pair(a, b)
    return lpips_distance(a, b, trunk)


@accepts_numpy
def negative_mse(a: Tensor, b: Tensor) -> Tensor:
    """All pairs: (m, c, h, w), (n, c, h, w) -> (m, n), larger is more alike."""
    x, y = a.flatten(1).double(), b.flatten(1).double()
    return -(torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") ** 2) / x.shape[1]


@accepts_numpy
def match(
    reconstructions: Tensor, truth: Tensor, similarity: Callable[[Tensor, Tensor], Tensor] = negative_mse
) -> Tensor:
    """The permutation p (n,) for which ``reconstructions[p]`` lines up with ``truth``.

    One reconstruction a record, total similarity largest (Hungarian method). With more
    reconstructions than records the rest stay unused; fewer raise ValueError.
    """
    if len(reconstructions) < len(truth):
        raise ValueError(
            f"{len(reconstructions)} reconstructions for {len(truth)} records: at least as many are needed"
        )
    rows, records = linear_sum_assignment(similarity(reconstructions, truth).numpy(force=True), maximize=True)
    return torch.as_tensor(rows[np.argsort(records)])


@accepts_numpy
def bootstrap_interval(
    values: Tensor, generator: torch.Generator, confidence: float = 0.95, draws: int = 2000
) -> tuple[float, float]:
    """Percentile interval of the mean over records, (low, high). values: (n,)."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: a number in (0, 1) is needed")
    rows = torch.randint(len(values), (draws, len(values)), generator=generator)
    means = values.double().cpu()[rows].mean(1)
    tail = (1 - confidence) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high

"""Corruptions that the authors of CIFAR-10-C make with scikit-image, against scikit-image called as
their script calls it; and how much snow falls, against its closed form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from skimage.color import hsv2rgb, rgb2hsv
from skimage.filters import gaussian

from privdd.data.corruptions import corrupt_images

Picture = NDArray[np.float64]


def blurred(x: Picture, level: int) -> Picture:
    return gaussian(x, sigma=(0.4, 0.6, 0.7, 0.8, 1.0)[level], channel_axis=-1, mode="nearest")


def brighter(x: Picture, level: int) -> Picture:
    hsv = rgb2hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + (0.05, 0.1, 0.15, 0.2, 0.3)[level], 0, 1)
    return hsv2rgb(hsv)


def saturated(x: Picture, level: int) -> Picture:
    factor, offset = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[level]
    hsv = rgb2hsv(x)
    hsv[..., 1] = np.clip(hsv[..., 1] * factor + offset, 0, 1)
    return hsv2rgb(hsv)


PEERS: dict[str, Callable[[Picture, int], Picture]] = {
    "gaussian_blur": blurred,
    "brightness": brighter,
    "saturate": saturated,
}


@pytest.mark.parametrize("name", PEERS)
def test_the_picture_is_scikit_images(name: str) -> None:
    x = np.random.default_rng(0).random((2, 12, 10, 3))
    for severity in range(1, 6):
        ours = corrupt_images(
            name,
            torch.from_numpy(x).permute(0, 3, 1, 2),
            severity,
            torch.Generator().manual_seed(0),
        )
        expected = np.stack([np.clip(PEERS[name](picture, severity - 1), 0, 1) for picture in x])
        np.testing.assert_allclose(
            ours.permute(0, 2, 3, 1).numpy(), expected, atol=1e-4, err_msg=f"{severity}"
        )


def test_as_much_snow_falls_as_its_normal_draws_say() -> None:
    """At severity 1 flakes are draws z of N(0.1, 0.2^2), those below 0.6 left out, and lie on the
    picture twice, the second time turned upside down. On black, 0.95 of it and 0.05 of its pale
    copy, 0.5, show through. The mean of z over z > t is m (1 - Phi(a)) + s phi(a), a = (t - m) / s;
    smearing leaves it as it is."""
    mean, std, least = 0.1, 0.2, 0.6
    deviation = (least - mean) / std
    flakes = mean * norm.sf(deviation) + std * norm.pdf(deviation)
    black = torch.zeros(20, 3, 64, 64)
    snowed = corrupt_images("snow", black, 1, torch.Generator().manual_seed(0))
    assert float(snowed.mean()) == pytest.approx(0.05 * 0.5 + 2 * flakes, rel=0.02)

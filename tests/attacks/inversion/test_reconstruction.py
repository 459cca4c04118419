"""Pixels in and out of a network's scale, and requests that no attack can answer."""

from __future__ import annotations

import math

import pytest
import torch

from attacks.inversion.victim import PixelScale, check_gradient_request

PARAMETERS = [torch.zeros(2, 3), torch.zeros(2)]


def test_pixels_go_to_the_networks_scale_and_back() -> None:
    pixels = PixelScale(mean=(0.2, 0.5), std=(0.1, 0.4))
    images = torch.rand(3, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    inputs = pixels.to_input(images)
    assert torch.allclose(inputs[:, 1], (images[:, 1] - 0.5) / 0.4)
    assert torch.allclose(pixels.to_image(inputs), images, atol=1e-6)
    black, white = pixels.input_box(inputs)
    assert torch.allclose(pixels.to_image(black - 1), torch.zeros(2, 1, 1))
    assert torch.allclose(pixels.to_image(white + 1), torch.ones(2, 1, 1))


def test_a_request_that_fits_is_accepted() -> None:
    check_gradient_request([torch.ones(2, 3), torch.ones(2)], PARAMETERS, (1, 1, 8, 8))


@pytest.mark.parametrize(
    ("gradients", "shape", "message"),
    [
        ([torch.ones(2, 3), torch.ones(2)], (1, 8, 8), "positive integers"),
        ([torch.ones(2, 3), torch.ones(2)], (0, 1, 8, 8), "positive integers"),
        ([torch.ones(3, 2), torch.ones(2)], (1, 1, 8, 8), "gradients have shapes"),
        ([torch.ones(2, 3)], (1, 1, 8, 8), "gradients have shapes"),
        ([torch.ones(2, 3), torch.full((2,), math.nan)], (1, 1, 8, 8), "NaN or infinity"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(
    gradients: list[torch.Tensor], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_gradient_request(gradients, PARAMETERS, shape)

"""Scattering features against a direct convolution, and what the map must keep: rows, gradients,
refusals."""

import math

import numpy as np
import pytest
import torch

from privdd.distillation.scattering import Scattering, morlet

torch.set_num_threads(1)


def convolve(image, kernel):
    """The periodic convolution of two images, place by place."""
    out = np.zeros(image.shape, complex)
    for i, j in np.ndindex(kernel.shape):
        out += kernel[i, j] * np.roll(image, (i, j), (0, 1))
    return out


def bell(shape, sigma):
    at = [np.minimum(np.arange(n), n - np.arange(n)) for n in shape]
    window = np.exp(-(at[0][:, None] ** 2 + at[1][None, :] ** 2) / (2 * sigma**2))
    return window / window.sum()


def scatter_directly(image, scales, angles):
    """Coefficients by definition, at full resolution, then every 2**scales-th place inside of the
    reflected margin."""
    step = 2**scales
    rows, columns = (step * (math.ceil(n / step) + 2) for n in image.shape)
    padded = np.pad(
        image,
        ((step, rows - step - image.shape[0]), (step, columns - step - image.shape[1])),
        "reflect",
    )
    average = bell(padded.shape, 0.8 * 2 ** (scales - 1))

    def keep(x):
        return convolve(x, average).real[step:-step:step, step:-step:step]

    def wavelet(scale, turn):
        return morlet(
            padded.shape,
            0.8 * 2**scale,
            math.pi * turn / angles,
            0.75 * math.pi / 2**scale,
            4 / angles,
        )

    found = [keep(padded)]
    for first in range(scales):
        moduli = [abs(convolve(padded, wavelet(first, turn))) for turn in range(angles)]
        found += [keep(m) for m in moduli]
        for second in range(first + 1, scales):
            found += [
                keep(abs(convolve(m, wavelet(second, turn))))
                for m in moduli
                for turn in range(angles)
            ]
    return np.stack(found)


def smooth_image(side, seed=0):
    noise = np.random.default_rng(seed).normal(size=(side, side))
    image = convolve(noise, bell((side, side), 1.2)).real
    return (image - image.min()) / (image.max() - image.min())


def channels_of(image, **settings):
    """Coefficients of one image before normalisation, up to one factor."""
    found = Scattering(groups=0, **settings)(torch.from_numpy(image).float()[None, None])[0]
    channels = Scattering(groups=0, **settings).channels
    return found.reshape(channels, -1).double().numpy()


@pytest.mark.parametrize("side, scales, angles", [(12, 2, 4), (10, 2, 3), (8, 1, 8)])
def test_the_coefficients_are_those_of_a_direct_convolution(side, scales, angles):
    image = smooth_image(side)
    expected = scatter_directly(image, scales, angles).reshape(
        Scattering(scales, angles, 0).channels, -1
    )
    found = channels_of(image, scales=scales, angles=angles)
    expected, found = (values / np.linalg.norm(values[0]) for values in (expected, found))
    finest = 1 + angles
    assert np.allclose(
        found[:finest], expected[:finest], atol=1e-5
    )  # no place is left out before the modulus
    for mine, direct in zip(
        found[finest:], expected[finest:]
    ):  # where places are left out, a little aliases
        assert np.linalg.norm(mine - direct) <= 0.05 * np.linalg.norm(direct)
    turned = np.roll(expected[1:finest], 1, 0)
    assert not np.allclose(found[1:finest], turned, atol=1e-3)  # another angle is told apart


def test_rows_have_norm_one_and_depend_on_their_image_alone():
    images = torch.rand(5, 3, 9, 13, generator=torch.Generator().manual_seed(0))
    rows = Scattering()(images)
    assert rows.shape == (5, 3 * 81 * 3 * 4)
    assert torch.allclose(rows.norm(dim=1), torch.ones(5))
    assert torch.allclose(Scattering()(images[2:3])[0], rows[2], atol=1e-6)


def test_a_black_image_has_a_finite_row_and_gradient():
    image = torch.zeros(1, 1, 8, 8, requires_grad=True)
    row = Scattering()(image)
    row.sum().backward()
    assert row.isfinite().all() and image.grad.isfinite().all()


def test_an_image_that_moves_by_one_place_keeps_most_of_its_row():
    image = torch.from_numpy(smooth_image(32)).float()[None, None]
    moved = image.roll(1, -1)
    pixels = torch.nn.functional.cosine_similarity(
        *(x.flatten(1) - x.mean() for x in (image, moved))
    )
    rows = (Scattering(groups=0)(image) * Scattering(groups=0)(moved)).sum(1)
    assert rows > 0.98 and rows > pixels


@pytest.mark.parametrize("settings", [{"scales": 0}, {"angles": 0}, {"groups": -1}, {"groups": 5}])
def test_a_bad_setting_is_named(settings):
    with pytest.raises(ValueError, match=rf"extractor\.{next(iter(settings))}"):
        Scattering(**settings)

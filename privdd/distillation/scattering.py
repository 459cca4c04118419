"""Scattering features of images: a fixed public map that needs no data, no training, no download.

Bruna and Mallat (2013), "Invariant scattering convolution networks", with Morlet wavelets. Under
privacy with a linear head: Tramer and Boneh (ICLR 2021), whose grouped normalisation is used here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attacks.validation import check_counts

FINEST = 0.8  # pixels: width of the finest wavelet's envelope, and of the average at its scale
FREQUENCY = 3 * math.pi / 4  # radians a pixel: of the finest wavelet
MIN_NORM = 1e-5  # avoids division by zero in a group of equal numbers


@dataclass(frozen=True)
class Scattering:
    """Images (b, c, h, w) in [0, 1] -> (b, p): moduli of wavelet coefficients, averaged locally.

    With wavelets psi and a window phi, the coefficients of order 0, 1 and 2 are
    x * phi,    |x * psi_1| * phi,    ||x * psi_1| * psi_2| * phi.
    There are 1 + J L + L**2 J (J - 1) / 2 of them a place and colour. The row is scaled to norm 1.
    Images are continued by reflection. A row depends on its image alone.

    Attributes:
        scales: J, octaves; averages stand 2**J pixels apart.
        angles: L, orientations of the half circle.
        groups: the channels are split into so many groups of neighbours, each of which is brought
            to mean 0 and deviation 1 in every image; 0: not at all.

    Raises:
        ValueError: for a number of groups that does not divide the channels.
    """

    why_images_only: ClassVar[str] = "its wavelets lie in a plane"

    scales: int = 2
    angles: int = 8
    groups: int = 27

    def __post_init__(self) -> None:
        check_counts(self, "scales", "angles", under="extractor.")
        check_counts(self, "groups", least=0, under="extractor.")
        if self.groups and self.channels % self.groups:
            raise ValueError(
                f"extractor.groups={self.groups}: a divisor of the {self.channels} channels, or 0"
            )

    @property
    def channels(self) -> int:
        """Numbers a place, of one colour."""
        first_order = self.scales * self.angles
        second_order = self.angles**2 * self.scales * (self.scales - 1) // 2
        return 1 + first_order + second_order

    def __call__(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        step = 2**self.scales
        rows = math.ceil(height / step)
        columns = math.ceil(width / step)
        padded = _extend_by_reflection(x, step * (rows + 2), step * (columns + 2), step)
        coefficients = self._coefficients(padded.flatten(0, 1), rows, columns)
        coefficients = coefficients.reshape(len(x), x.shape[1], self.channels, -1)
        if self.groups:
            coefficients = self._normalise_groups(coefficients)
        features = coefficients.flatten(1)
        return features / features.norm(dim=1, keepdim=True).clamp_min(MIN_NORM)

    def _normalise_groups(self, coefficients: Tensor) -> Tensor:
        """(b, c, channels, places) -> (b, c, groups, ...), each group of mean 0, deviation 1."""
        images, colours = coefficients.shape[:2]
        grouped = coefficients.reshape(images, colours, self.groups, -1)
        spread = grouped.std(-1, keepdim=True, correction=0) + MIN_NORM
        return (grouped - grouped.mean(-1, keepdim=True)) / spread

    def _coefficients(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """(n, h', w') -> (n, channels, rows columns), by order, then scales, then angles."""
        bank = _wavelets(tuple(x.shape[-2:]), self.scales, self.angles)
        spectrum = torch.fft.fft2(x)
        coefficients = [_average(x[:, None], self.scales, 0, rows, columns)]
        for first in range(self.scales):
            moduli = _filter(spectrum[:, None], bank[first].to(x), 2**first).abs()  # (n, L, ...)
            coefficients.append(_average(moduli, self.scales, first, rows, columns))
            if first + 1 == self.scales:
                break
            inner_spectrum = torch.fft.fft2(moduli)
            for second in range(first + 1, self.scales):
                filters = _alias_filters(bank[second].to(x), 2**first)
                factor = 2 ** (second - first)
                deeper = _filter(inner_spectrum[:, :, None], filters, factor).abs().flatten(1, 2)
                coefficients.append(_average(deeper, self.scales, second, rows, columns))
        return torch.cat(coefficients, 1).flatten(2)


def _extend_by_reflection(x: Tensor, rows: int, columns: int, margin: int) -> Tensor:
    """(b, c, h, w) -> (b, c, rows, columns), the image ``margin`` from the upper left corner,
    reflected about its edges."""
    row_index = _reflect_places(x.shape[-2], rows, margin, x.device)
    column_index = _reflect_places(x.shape[-1], columns, margin, x.device)
    return x[..., row_index, :][..., column_index]


def _reflect_places(side: int, length: int, margin: int, device: torch.device) -> Tensor:
    """(length,): which of ``side`` places stands at each place of a reflected line."""
    period = max(2 * (side - 1), 1)
    place = (torch.arange(length, device=device) - margin) % period
    return torch.minimum(place, period - place).clamp_max(side - 1)


def _alias_filters(filters: Tensor, step: int) -> Tensor:
    """Spectra (L, h, w) of filters for images of which every ``step``-th place is left: copies are
    added up."""
    height, width = filters.shape[1:]
    copies = filters.reshape(-1, step, height // step, step, width // step)
    return copies.sum((1, 3))


def _filter(spectrum: Tensor, filters: Tensor, factor: int) -> Tensor:
    """The images of spectra (..., h, w) times real ``filters`` (L, h, w), every ``factor``-th place
    of them."""
    parts = torch.view_as_real(spectrum)
    h = filters.shape[-2] // factor
    w = filters.shape[-1] // factor
    total = torch.zeros((), device=parts.device)
    # the spectrum of every factor-th place is the mean over the blocks that alias
    for i, j in np.ndindex(factor, factor):
        block = (..., slice(i * h, (i + 1) * h), slice(j * w, (j + 1) * w))
        total = torch.addcmul(total, parts[*block, :], filters[*block, None])
    return torch.fft.ifft2(torch.view_as_complex(total / factor**2))


def _average(x: Tensor, scales: int, scale: int, rows: int, columns: int) -> Tensor:
    """(n, k, h, w), every 2**scale-th place -> (n, k, rows, columns): a normal window every
    2**scales pixels."""
    row_window = _window(x.shape[-2], scales, scale, rows).to(x)
    right = _window(x.shape[-1], scales, scale, columns).to(x)
    return row_window @ x @ right.T


@lru_cache(maxsize=64)
def _window(length: int, scales: int, scale: int, count: int) -> Tensor:
    """(count, length): weights of places 2**scale pixels apart, of sum 1 a row, about places
    2**scales pixels apart."""
    sigma = FINEST * 2 ** (scales - 1 - scale)
    centre = (np.arange(count) + 1) * 2 ** (scales - scale)
    distance = np.arange(length)[None, :] - centre[:, None]
    weights = sum(
        np.exp(-((distance + length * turn) ** 2) / (2 * sigma**2)) for turn in (-1, 0, 1)
    )
    return torch.from_numpy(weights / weights.sum(1, keepdims=True)).float()


@lru_cache(maxsize=16)
def _wavelets(shape: tuple[int, int], scales: int, angles: int) -> tuple[Tensor, ...]:
    """A tensor (angles, h, w) a scale: spectra of Morlet wavelets, real since each wavelet is
    Hermitian."""
    return tuple(_spectra_of_scale(shape, scale, angles) for scale in range(scales))


def _spectra_of_scale(shape: tuple[int, int], scale: int, angles: int) -> Tensor:
    spectra = []
    for turn in range(angles):
        angle = math.pi * turn / angles
        wavelet = morlet(shape, FINEST * 2**scale, angle, FREQUENCY / 2**scale, 4 / angles)
        spectra.append(torch.from_numpy(np.fft.fft2(wavelet).real))
    return torch.stack(spectra).float()


def morlet(
    shape: tuple[int, int], sigma: float, angle: float, frequency: float, slant: float
) -> np.ndarray:
    """The periodic Morlet wavelet, its middle at (0, 0).

        psi(u) = (exp(i xi . u) - beta) exp(-|u|_s^2 / (2 sigma^2)),  beta such that its sum is 0

    Args:
        shape: (h, w) in pixels.
        sigma: pixels, the envelope's width along the wave.
        angle: radians, the direction of the wave.
        frequency: |xi|, radians a pixel.
        slant: the envelope is sigma / slant pixels wide across the wave.

    Returns:
        (h, w), complex.
    """
    total = np.zeros(shape, complex)
    envelope = np.zeros(shape)
    height, width = shape
    for row_turn, column_turn in np.ndindex(5, 5):
        down = np.arange(height)[:, None] + (row_turn - 2) * height
        across = np.arange(width)[None, :] + (column_turn - 2) * width
        along = across * math.cos(angle) + down * math.sin(angle)
        aside = down * math.cos(angle) - across * math.sin(angle)
        bell = np.exp(-(along**2 + slant**2 * aside**2) / (2 * sigma**2))
        envelope += bell
        total += bell * np.exp(1j * frequency * along)
    total -= envelope * (total.sum() / envelope.sum())
    return total * slant / (2 * math.pi * sigma**2)

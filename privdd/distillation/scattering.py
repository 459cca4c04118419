"""Scattering features: averages of wavelet moduli, a map of images that is fixed in advance and needs no pre-training.

Bruna and Mallat (2013), "Invariant scattering convolution networks", with Morlet wavelets; under privacy with a linear
head: Tramer and Boneh (ICLR 2021), whose grouped normalisation is used here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from attacks.validation import check_counts

FINEST = 0.8  # pixels: width of the finest wavelet's envelope, and of the average at its scale
FREQUENCY = 3 * math.pi / 4  # radians a pixel: of the finest wavelet
SMALL = 1e-5  # avoids division by zero in a group of equal numbers


@dataclass(frozen=True)
class Scattering:
    """Images (b, c, h, w) in [0, 1] -> (b, p): moduli of wavelet coefficients of order 0, 1 and 2, averaged locally.

    scales: J, octaves; averages stand 2**J pixels apart; angles: L, orientations of the half circle. There are
    1 + J L + L**2 J (J - 1) / 2 numbers a place and colour. groups: the channels are split into so many groups of
    neighbours, each of which is brought to mean 0 and deviation 1 in every image (0: not at all; a number that does not
    divide the channels is refused). The row is scaled to norm 1 then. Images are continued by reflection. A row depends on its image alone.
    """

    scales: int = 2
    angles: int = 8
    groups: int = 27

    def __post_init__(self) -> None:
        check_counts(self, "scales", "angles", under="extractor.")
        check_counts(self, "groups", least=0, under="extractor.")
        if self.groups and self.channels % self.groups:
            raise ValueError(f"extractor.groups={self.groups}: a divisor of the {self.channels} channels, or 0")

    @property
    def channels(self) -> int:
        """Numbers a place, of one colour."""
        return 1 + self.scales * self.angles + self.angles**2 * self.scales * (self.scales - 1) // 2

    def __call__(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        step = 2**self.scales
        tall, wide = (step * (math.ceil(side / step) + 2) for side in (height, width))
        padded = _extend_by_reflection(x, tall, wide, step)
        found = self._coefficients(padded.flatten(0, 1), math.ceil(height / step), math.ceil(width / step))
        found = found.reshape(len(x), x.shape[1], self.channels, -1)
        if self.groups:
            grouped = found.reshape(len(x), x.shape[1], self.groups, -1)
            spread = grouped.std(-1, keepdim=True, correction=0) + SMALL
            found = (grouped - grouped.mean(-1, keepdim=True)) / spread
        rows = found.flatten(1)
        return rows / rows.norm(dim=1, keepdim=True).clamp_min(SMALL)

    def _coefficients(self, x: Tensor, down: int, across: int) -> Tensor:
        """(n, h', w') -> (n, channels, down across), by the order in which paths are listed: scales first, then angles."""
        bank = _wavelets(tuple(x.shape[-2:]), self.scales, self.angles)
        spectrum, found = torch.fft.fft2(x), [_average(x[:, None], self.scales, 0, down, across)]
        for first in range(self.scales):
            moduli = _filter(spectrum[:, None], bank[first].to(x), 2**first).abs()  # (n, L, ...)
            found.append(_average(moduli, self.scales, first, down, across))
            if first + 1 == self.scales:
                break
            inner = torch.fft.fft2(moduli)
            for second in range(first + 1, self.scales):
                filters = _subsample_spectrum(bank[second].to(x), 2**first)
                deeper = _filter(inner[:, :, None], filters, 2 ** (second - first)).abs().flatten(1, 2)
                found.append(_average(deeper, self.scales, second, down, across))
        return torch.cat(found, 1).flatten(2)


def _extend_by_reflection(x: Tensor, rows: int, columns: int, margin: int) -> Tensor:
    """(b, c, h, w) -> (b, c, rows, columns), the image ``margin`` from the upper left corner, reflected about its edges."""
    at = []
    for side, length in ((x.shape[-2], rows), (x.shape[-1], columns)):
        period = max(2 * (side - 1), 1)
        place = (torch.arange(length, device=x.device) - margin) % period
        at.append(torch.minimum(place, period - place).clamp_max(side - 1))
    return x[..., at[0], :][..., at[1]]


def _filter(spectrum: Tensor, filters: Tensor, factor: int) -> Tensor:
    """The images of spectra (..., h, w) times real ``filters`` (L, h, w), every ``factor``-th place of them."""
    parts, h, w = torch.view_as_real(spectrum), filters.shape[-2] // factor, filters.shape[-1] // factor
    total = torch.zeros((), device=parts.device)
    for i, j in np.ndindex(factor, factor):  # the spectrum of every factor-th place: the mean over blocks that alias
        block = (..., slice(i * h, (i + 1) * h), slice(j * w, (j + 1) * w))
        total = torch.addcmul(total, parts[*block, :], filters[*block, None])
    return torch.fft.ifft2(torch.view_as_complex(total / factor**2))


def _subsample_spectrum(filters: Tensor, factor: int) -> Tensor:
    """Filters (L, h, w) for images of which every ``factor``-th place is left: their copies added up."""
    count, h, w = filters.shape
    return filters.reshape(count, factor, h // factor, factor, w // factor).sum((1, 3))


def _average(x: Tensor, scales: int, scale: int, down: int, across: int) -> Tensor:
    """(n, k, h, w), every 2**scale-th place -> (n, k, down, across): a normal window every 2**scales pixels."""
    left, right = (
        _window(length, scales, scale, count).to(x) for length, count in ((x.shape[-2], down), (x.shape[-1], across))
    )
    return left @ x @ right.T


@lru_cache(maxsize=64)
def _window(length: int, scales: int, scale: int, count: int) -> Tensor:
    """(count, length): weights of places 2**scale pixels apart, of sum 1 a row, about places 2**scales pixels apart."""
    sigma = FINEST * 2 ** (scales - 1 - scale)
    centre = (np.arange(count) + 1) * 2 ** (scales - scale)
    apart = np.arange(length)[None, :] - centre[:, None]
    weights = sum(np.exp(-((apart + length * turn) ** 2) / (2 * sigma**2)) for turn in (-1, 0, 1))
    return torch.from_numpy(weights / weights.sum(1, keepdims=True)).float()


@lru_cache(maxsize=16)
def _wavelets(shape: tuple[int, int], scales: int, angles: int) -> tuple[Tensor, ...]:
    """A tensor (angles, h, w) a scale: spectra of Morlet wavelets, real since each wavelet is Hermitian."""
    return tuple(
        torch.stack([
            torch.from_numpy(np.fft.fft2(morlet(shape, FINEST * 2**scale, angle, FREQUENCY / 2**scale, 4 / angles)).real)
            for angle in (math.pi * turn / angles for turn in range(angles))
        ]).float()
        for scale in range(scales)
    )  # fmt: skip


def morlet(shape: tuple[int, int], sigma: float, angle: float, frequency: float, slant: float) -> np.ndarray:
    """The periodic Morlet wavelet (h, w), complex, its middle at (0, 0).

    A wave of ``frequency`` (radians a pixel) along ``angle`` under a normal envelope, ``sigma`` pixels wide along the
    wave and sigma / slant across it, less the multiple of the envelope that brings its sum to 0.
    """
    total = np.zeros(shape, complex)
    envelope = np.zeros(shape)
    for turn in np.ndindex(5, 5):
        down, across = (np.arange(n)[:, None] + (t - 2) * n for n, t in zip(shape, turn))
        across = across.T
        along = across * math.cos(angle) + down * math.sin(angle)
        aside = down * math.cos(angle) - across * math.sin(angle)
        bell = np.exp(-(along**2 + slant**2 * aside**2) / (2 * sigma**2))
        envelope += bell
        total += bell * np.exp(1j * frequency * along)
    total -= envelope * (total.sum() / envelope.sum())
    return total * slant / (2 * math.pi * sigma**2)

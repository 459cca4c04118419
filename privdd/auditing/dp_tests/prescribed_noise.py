"""Releases under prescribed coins and noise, and how likely each is with and without a record.

What a mechanism does with its noise is measured, not believed: its value without noise, with and
without each record, and how far a draw of given size moves each number. So less noise than stated,
or more movement than the clip norm allows, shows up in the privacy loss. Trusted is that
``noise.normal`` is standard normal.

Symbols: a release of no record is m + s z, number by number, with draws z ~ N(0, I) and scales s;
record h moves it by d_h, in units of the noise by w_h = d_h / s, of length mu_h = |w_h|; q is the
chance that a record takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from privdd.core.types import Tensors
from privdd.privacy.mechanism import Mechanism, Output

PROBE_DRAW = 256.0  # so large that rounding to a lattice or to float32 is small beside it
# How far a release may be from value + scale * draw, in noise scales: a lattice's step is 2**-12.
ROUNDING_TOLERANCE = 1e-3
VALUE_TOLERANCE = 1e-5  # the same of the value: float32 sums round in another order
NOISELESS_TOLERANCE = 1e-6  # how far a number without noise may be from its value, relatively
MAX_OVERLAP = 1e-6  # cosine of two records' directions below which they do not overlap
LEAST_LENGTH = 1e-300  # by which a direction of no length is divided


class NoiseNotPrescribed(RuntimeError):
    """A mechanism whose noise is not one given draw for each number that it releases, times a
    scale."""


class UnknownContributions(NoiseNotPrescribed):
    """A cell holds other records than those of its class."""


@dataclass
class PrescribedNoise:
    """Noise that hands out one vector from its start, then more.

    Attributes:
        draws: that vector; None: every draw is ``constant``.
        constant: the number that is handed out instead.
        generator: of further draws.
        used: how many draws were handed out.
    """

    draws: Tensor | None = None
    constant: float = 0.0
    generator: torch.Generator | None = None
    used: int = field(default=0, init=False)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        count = int(np.prod(shape, dtype=np.int64))
        if self.draws is None:
            return torch.full(shape, self.constant, dtype=torch.float64)
        part = self.draws[self.used : self.used + count]
        self.used += count
        rest = torch.randn(count - len(part), generator=self.generator, dtype=torch.float64)
        return torch.cat([part, rest]).reshape(shape)

    def laplace(self, shape: tuple[int, ...]) -> Tensor:
        raise NoiseNotPrescribed("its noise is not Gaussian")

    uniform = laplace


@dataclass(frozen=True)
class PrescribedRelease:
    """One release of H runs.

    Attributes:
        output: the mechanism's.
        mus: (H,) how far each record moves the release, in units of its noise.
        losses: (H,) each record's ln P/Q.
    """

    output: Output
    mus: np.ndarray
    losses: np.ndarray


def concatenate_values(value: Tensors) -> Tensor:
    """All numbers as one float64 vector, in the order in which a mechanism noises them."""
    parts = [tensor.flatten() for tensor in value.values()]
    # One conversion, if all are of one type, instead of one for each of many small tensors.
    if len({part.dtype for part in parts}) > 1:
        parts = [part.double() for part in parts]
    return torch.cat(parts).detach().double().cpu()


@dataclass(frozen=True)
class EmptyRelease:
    """A release of no record.

    Attributes:
        numbers: its numbers without noise, m.
        scale: how far a draw of one moves each of them, s; 0: the number gets no noise.
    """

    numbers: Tensor
    scale: Tensor

    @cached_property
    def has_noiseless_numbers(self) -> bool:
        """Whether there are numbers that get no noise."""
        return not bool((self.scale > 0).all())

    @staticmethod
    def from_mechanism(mechanism: Mechanism, nobody: Tensors) -> EmptyRelease:
        """s = |M(nobody; z = c) - M(nobody; z = 0)| / c for a large draw c = ``PROBE_DRAW``."""
        numbers = value_at_draw(mechanism, nobody)
        probed = value_at_draw(mechanism, nobody, PROBE_DRAW)
        return EmptyRelease(numbers, (_subtract(probed, numbers) / PROBE_DRAW).abs())


def value_at_draw(mechanism: Mechanism, value: Tensors, draw: float = 0.0) -> Tensor:
    """What a mechanism releases if every draw is ``draw``."""
    return concatenate_values(mechanism(value, PrescribedNoise(constant=draw)).value)


def _subtract(released: Tensor, reference: Tensor) -> Tensor:
    if released.shape != reference.shape:
        raise NoiseNotPrescribed("how many numbers it releases depends on its input or its noise")
    return released - reference


def _measure_shifts(mechanism: Mechanism, empty: Tensor, alone: Sequence[Tensors]) -> Tensor:
    """d_h, how each input moves the numbers without noise: (H, numbers)."""
    rows = [_subtract(value_at_draw(mechanism, contributions), empty) for contributions in alone]
    if rows:
        return torch.stack(rows)
    return empty.new_zeros(0, len(empty))


def _noise_directions(shifts: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(directions w_h / mu_h (H, numbers), lengths mu_h (H,)) of shifts in units of the noise."""
    white = torch.where(scale > 0, shifts / scale, 0.0)
    mus = white.norm(dim=1)
    return white / mus.clamp_min(LEAST_LENGTH).unsqueeze(1), mus


def _noiseless_directions(shifts: Tensor, scale: Tensor) -> Tensor:
    return functional.normalize(torch.where(scale > 0, 0.0, shifts), dim=1, eps=LEAST_LENGTH)


@dataclass(frozen=True)
class _WhitenedRelease:
    """One release as a record's likelihood reads it.

    Attributes:
        numbers: in units of the noise, less the empty release: y.
        moved: before noise, less the empty release.
        scale: s.
        visible: (H, numbers) where a record may show; None if all numbers get noise. One without
            noise says by itself whether a record took part, or that neither can be.
    """

    numbers: Tensor
    moved: Tensor
    scale: Tensor
    visible: Tensor | None

    def log_likelihoods(self, shifts: Tensor, q: float) -> Tensor:
        """ln of how likely the release is, over N(0, I), if record h takes part with chance q:

            ln[(1 - q) + q exp(<w_h, y> - mu_h^2 / 2)],

        the mixture of two Gaussians (Mironov, Talwar and Zhang 2019). Exact, unlike a bound: the
        transcript hides only the record's own coin.

        Args:
            shifts: d_h (H, numbers).
            q: of every record.

        Returns:
            (H,).
        """
        chance = torch.tensor([q, 1 - q], dtype=torch.float64).log()
        if self.visible is None:
            white = shifts / self.scale
            joins = chance[0] + white @ self.numbers - white.square().sum(1) / 2
            return torch.logaddexp(joins, chance[1])
        white = torch.where(self.scale > 0, shifts / self.scale, 0.0)
        joins = chance[0] + white @ self.numbers - white.square().sum(1) / 2
        never = torch.full_like(joins, -torch.inf)
        noiseless = self.visible & (self.scale == 0)
        fits_present = self._fits(shifts, noiseless)
        fits_absent = self._fits(torch.zeros_like(shifts), noiseless)
        present = torch.where(fits_present, joins, never)
        absent = torch.where(fits_absent, chance[1], never)
        return torch.logaddexp(present, absent)

    def _fits(self, shifts: Tensor, noiseless: Tensor) -> Tensor:
        """(H,) whether the numbers without noise are those of these shifts."""
        differs = (self.moved - shifts).abs() > NOISELESS_TOLERANCE * shifts.abs()
        return ~(noiseless & differs).any(1)


def _check_no_overlap(directions: Tensor, others: Tensor) -> None:
    """Raises NoiseNotPrescribed if directions (H, numbers) of different records overlap."""
    overlap = (directions @ others.T).fill_diagonal_(0.0).abs().max()
    if float(overlap) > MAX_OVERLAP:
        raise NoiseNotPrescribed(f"the records' directions overlap ({float(overlap):.2g})")


def _check_all_apart(shifts: Tensor, others: Tensor, empty: EmptyRelease) -> None:
    """Raises NoiseNotPrescribed if a record moves the numbers in which another, or what another is
    exchanged for, moves them: one draw could then not be dealt to each."""
    if len(others):
        compared = [shifts, others]
    elif len(shifts) > 1:
        compared = [shifts]
    else:
        return
    units = _noise_directions(shifts, empty.scale)[0]
    for rows in compared:
        _check_no_overlap(units, _noise_directions(rows, empty.scale)[0])
        if empty.has_noiseless_numbers:
            noiseless = _noiseless_directions(shifts, empty.scale)
            _check_no_overlap(noiseless, _noiseless_directions(rows, empty.scale))


def _draws_along(
    shifts: Tensor, scale: Tensor, noise: np.ndarray, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(draws z (numbers,) whose component along each record's direction is ``noise``, mus (H,)).

    z = g + sum_h (noise_h - <u_h, g>) u_h with g ~ N(0, I) and u_h = w_h / mu_h: normal in all
    other directions. The u_h must be orthogonal.
    """
    units, mus = _noise_directions(shifts, scale)
    draws = torch.randn(len(scale), generator=generator, dtype=torch.float64)
    draws += (torch.from_numpy(np.asarray(noise, float)) * (mus > 0) - units @ draws) @ units
    return draws, mus


def _visible_numbers(empty: EmptyRelease, shifts: Tensor, other_shifts: Tensor) -> Tensor | None:
    """(H, p): which numbers a record changes, if some are released without noise; else None."""
    if not empty.has_noiseless_numbers:
        return None
    if len(other_shifts):
        return (shifts != 0) | (other_shifts != 0)
    return shifts != 0


def _clean_numbers(
    mechanism: Mechanism,
    empty: EmptyRelease,
    alone: Sequence[Tensors],
    present: Tensors | None,
    shifts: Tensor,
) -> Tensor:
    """(p,): what the mechanism makes of ``present`` before noise."""
    if present is None:
        return empty.numbers
    if present is alone[0]:
        return empty.numbers + shifts[0]
    return value_at_draw(mechanism, present)


def release_prescribed(
    mechanism: Mechanism,
    empty: EmptyRelease,
    alone: Sequence[Tensors],
    present: Tensors | None,
    noise: np.ndarray,
    generator: torch.Generator,
    nobody: Tensors,
    against: Sequence[Tensors] = (),
) -> PrescribedRelease:
    """Makes one release whose noise along record h's direction is ``noise[h]`` standard deviations.

    Args:
        mechanism: whose release it is.
        empty: what it makes of ``nobody``.
        alone: its input with each of H records only.
        present: its input with those records whose coins say so; None for nobody.
        noise: (H,).
        generator: of noise in all other directions.
        nobody: its input without any of the records.
        against: its input with each of the records only that they are exchanged for, if that is not
            nobody.

    Raises:
        NoiseNotPrescribed: for noise of another form, for records whose directions overlap, and
            if the count of numbers released depends on the records.
    """
    scale = empty.scale
    shifts = _measure_shifts(mechanism, empty.numbers, alone)
    other_shifts = _measure_shifts(mechanism, empty.numbers, against)
    clean = _clean_numbers(mechanism, empty, alone, present, shifts)
    _check_all_apart(shifts, other_shifts, empty)
    draws, mus = _draws_along(shifts, scale, noise, generator)
    source = PrescribedNoise(draws, generator=generator)
    output = mechanism(nobody if present is None else present, source)
    gap = _subtract(concatenate_values(output.value), clean)
    tolerance = ROUNDING_TOLERANCE * scale + VALUE_TOLERANCE * clean.abs()
    if bool(((gap - scale * draws).abs() > tolerance).any()):
        raise NoiseNotPrescribed(
            "its noise is not one draw for each number that it releases, times a scale"
        )
    visible = _visible_numbers(empty, shifts, other_shifts)
    numbers = torch.where(scale > 0, (clean + gap - empty.numbers) / scale, 0.0)
    release = _WhitenedRelease(numbers, clean - empty.numbers, scale, visible)
    q = float(mechanism.sampling_probability)
    losses = release.log_likelihoods(shifts, q)
    if len(other_shifts):
        losses = losses - release.log_likelihoods(other_shifts, q)
    elif (
        visible is not None
    ):  # else nobody's likelihood is that of N(0, I), to which it is relative
        losses = losses - release.log_likelihoods(torch.zeros_like(shifts), 0.0)
    return PrescribedRelease(output, mus.numpy(), losses.numpy())

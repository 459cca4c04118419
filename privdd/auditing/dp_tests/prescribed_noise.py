"""Releases under prescribed coins and noise, and how likely each is with and without a record.

What a mechanism does with its noise is measured, not believed: its value without noise, with and
without each record, and how far a draw of given size moves each number. So less noise than stated,
or more movement than the clip norm allows, shows up in the privacy loss. Trusted is that
``noise.normal`` is standard normal."""

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
ROUNDING_TOLERANCE = (
    1e-3  # of the noise: how far a release may be from value + scale * draw (lattice step: 2**-12)
)
MAX_OVERLAP = 1e-6  # cosine of two records' directions below which they do not overlap


class NoiseNotPrescribed(RuntimeError):
    """A mechanism whose noise is not one given draw for each number that it releases, times a
    scale."""


class UnknownContributions(NoiseNotPrescribed):
    """A cell holds other records than those of its class."""


@dataclass
class PrescribedNoise:
    """Noise that hands out one vector from its start, then more; ``constant`` hands out copies of
    one number."""

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
        more = torch.randn(count - len(part), generator=self.generator, dtype=torch.float64)
        return torch.cat([part, more]).reshape(shape)

    def laplace(self, shape: tuple[int, ...]) -> Tensor:
        raise NoiseNotPrescribed("its noise is not Gaussian")

    uniform = laplace


@dataclass(frozen=True)
class PrescribedRelease:
    """mus: how far each record moves the release, in units of its noise; losses: each record's ln
    P/Q (H,)."""

    output: Output
    mus: np.ndarray
    losses: np.ndarray


def concatenate_values(value: Tensors) -> Tensor:
    """All numbers as one float64 vector, in the order in which a mechanism noises them."""
    parts = [tensor.flatten() for tensor in value.values()]
    if (
        len({part.dtype for part in parts}) > 1
    ):  # else one conversion, instead of one for each of many small tensors
        parts = [part.double() for part in parts]
    return torch.cat(parts).detach().double().cpu()


@dataclass(frozen=True)
class EmptyRelease:
    """A release of no record: its numbers without noise, and how far a draw of one moves each of
    them."""

    numbers: Tensor
    scale: Tensor

    @cached_property
    def has_noiseless_numbers(self) -> bool:
        """Whether there are numbers that get no noise."""
        return not bool((self.scale > 0).all())

    @staticmethod
    def from_mechanism(mechanism: Mechanism, nobody: Tensors) -> EmptyRelease:
        empty = value_at_draw(mechanism, nobody)
        return EmptyRelease(
            empty, ((value_at_draw(mechanism, nobody, PROBE_DRAW) - empty) / PROBE_DRAW).abs()
        )


def value_at_draw(mechanism: Mechanism, value: Tensors, draw: float = 0.0) -> Tensor:
    return concatenate_values(mechanism(value, PrescribedNoise(constant=draw)).value)


def _measure_shifts(mechanism: Mechanism, empty: Tensor, alone: Sequence[Tensors]) -> Tensor:
    """How each input moves the numbers without noise: (H, numbers)."""
    rows = [value_at_draw(mechanism, one) - empty for one in alone]
    return torch.stack(rows) if rows else empty.new_zeros(0, len(empty))


def _noise_directions(shifts: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(directions (H, numbers), lengths (H,)) of shifts in units of the noise."""
    white = torch.where(scale > 0, shifts / scale, 0.0)
    mus = white.norm(dim=1)
    return white / mus.clamp_min(1e-300).unsqueeze(1), mus


def _noiseless_directions(shifts: Tensor, scale: Tensor) -> Tensor:
    return functional.normalize(torch.where(scale > 0, 0.0, shifts), dim=1, eps=1e-300)


def _log_likelihoods(
    seen: Tensor, moved: Tensor, shifts: Tensor, own: Tensor | None, scale: Tensor, q: float
) -> Tensor:
    """ln of how likely a release is, (H,), over white noise, if record h takes part with
    probability q and then moves it by ``shifts[h]``. seen: the release in units of its noise,
    moved: before noise; own (H, numbers): where a record may show,
    None where all numbers get noise: one without noise says by itself whether it took part, or that
        neither can be."""
    chance = torch.tensor([q, 1 - q], dtype=torch.float64).log()
    if own is None:
        white = shifts / scale
        return torch.logaddexp(chance[0] + white @ seen - white.square().sum(1) / 2, chance[1])
    white = torch.where(scale > 0, shifts / scale, 0.0)
    bare = own & (scale == 0)
    fits = [
        ~(bare & ((moved - at).abs() > 1e-6 * at.abs())).any(1)
        for at in (shifts, torch.zeros_like(shifts))
    ]
    joins = chance[0] + white @ seen - white.square().sum(1) / 2
    never = torch.full_like(joins, -torch.inf)
    return torch.logaddexp(
        torch.where(fits[0], joins, never), torch.where(fits[1], chance[1], never)
    )


def _check_no_overlap(one: Tensor, other: Tensor) -> None:
    """Raises NoiseNotPrescribed where directions (H, numbers) of different records overlap."""
    overlap = (one @ other.T).fill_diagonal_(0.0).abs().max()
    if float(overlap) > MAX_OVERLAP:
        raise NoiseNotPrescribed(f"the records' directions overlap ({float(overlap):.2g})")


def release_prescribed(
    mechanism: Mechanism,
    blank: EmptyRelease,
    alone: Sequence[Tensors],
    taken: Tensors | None,
    noise: np.ndarray,
    generator: torch.Generator,
    nobody: Tensors,
    against: Sequence[Tensors] = (),
) -> PrescribedRelease:
    """Release ``taken``; along record h's direction the noise is ``noise[h]`` standard deviations.

    nobody: the mechanism's input without any of H records, and blank what it makes of that; alone:
        with each of them only; taken: with those whose coins say so, None for nobody; against: with
        each of the records only that they are
    exchanged for, where it is not nobody. Raises NoiseNotPrescribed for noise of another form, and
    for records whose directions overlap.
    """
    empty = blank.numbers
    scale = blank.scale
    shifts = _measure_shifts(mechanism, empty, alone)
    others = _measure_shifts(mechanism, empty, against)
    if taken is None:
        taken = nobody
        clean = empty
    else:
        clean = empty + shifts[0] if taken is alone[0] else value_at_draw(mechanism, taken)
    units, mus = _noise_directions(shifts, scale)
    for rows in (shifts, others) if len(others) else (shifts,) if len(shifts) > 1 else ():
        _check_no_overlap(units, units if rows is shifts else _noise_directions(rows, scale)[0])
        if blank.has_noiseless_numbers:
            _check_no_overlap(
                _noiseless_directions(shifts, scale), _noiseless_directions(rows, scale)
            )
    draws = torch.randn(len(empty), generator=generator, dtype=torch.float64)
    draws += (torch.from_numpy(np.asarray(noise, float)) * (mus > 0) - units @ draws) @ units
    given = PrescribedNoise(draws, generator=generator)
    output = mechanism(taken, given)
    gap = concatenate_values(output.value) - clean
    if bool(((gap - scale * draws).abs() > ROUNDING_TOLERANCE * scale + 1e-5 * clean.abs()).any()):
        raise NoiseNotPrescribed(
            "its noise is not one draw for each number that it releases, times a scale"
        )
    seen = torch.where(scale > 0, (clean + gap - empty) / scale, 0.0)
    own = (
        (shifts != 0) | (others != 0 if len(others) else False)
        if blank.has_noiseless_numbers
        else None
    )
    q = float(mechanism.sampling_probability)
    inside = _log_likelihoods(seen, clean - empty, shifts, own, scale, q)
    if not len(others) and own is None:  # nobody: the likelihood of white noise
        return PrescribedRelease(output, mus.numpy(), inside.numpy())
    beside = (others, q) if len(others) else (torch.zeros_like(shifts), 0.0)
    outside = _log_likelihoods(seen, clean - empty, beside[0], own, scale, beside[1])
    return PrescribedRelease(output, mus.numpy(), (inside - outside).numpy())

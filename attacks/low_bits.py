"""Low bits: does rounding tell a noised value from noise alone? (Mironov 2012; Jin et al. 2022;
Holohan and Braghin 2021)

``x + std * noise`` in floating point keeps the grid of ``x`` if noise cancels most of it, and ``0 +
std * noise`` does not. A release is free of this only if its numbers are multiples of one public
step, whatever the clean value: then what an observer sees is a function of the ideal noised value.
This module finds that step, or the numbers that have none."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.tensors import accepts_numpy

# times std: numbers further from zero are multiples of a coarse step by their float format alone
MAX_NOISE_SCALES = 8.0
NO_BIT = 2000.0  # above that of any number
# times std: the finest step that the format of a float32 number within NEAR would not give by
# itself
FINEST_STEP = 2.0**-18


@dataclass(frozen=True)
class LowBits:
    """What the low bits of a release show.

    Attributes:
        judged: numbers within ``MAX_NOISE_SCALES`` noise scales of zero.
        off: how many of all numbers are off the lattice; above 0, low bits can distinguish clean
            values.
        step: the lattice that was tested. If none was given, the largest power of two, at least
            ``FINEST_STEP`` times the noise scale, that divides every judged number; 0 for none.
    """

    judged: int
    off: int
    step: float


@accepts_numpy
def lowest_set_bits(values: Tensor) -> Tensor:
    """log2 of the lowest set bit of each number, as float64; ``NO_BIT`` for 0, which has none."""
    mantissa, exponent = values.double().frexp()
    digits = (mantissa * 2.0**53).abs().long()
    lowest = digits & -digits  # of a two's complement: the lowest set bit alone
    return torch.where(digits > 0, lowest.double().log2() + exponent - 53, NO_BIT)


@accepts_numpy
def is_off_lattice(values: Tensor, step: float) -> Tensor:
    """Which numbers are not multiples of ``step`` (exact, in float64); NaN and infinities are off
    it."""
    if not (math.isfinite(step) and step > 0):
        raise ValueError(f"step={step!r}: a finite number above 0 is needed")
    quotient = values.double() / step
    return ~(quotient == quotient.round()) | ~quotient.isfinite()


@accepts_numpy
def examine_low_bits(released: Tensor, std: float, step: float | None = None) -> LowBits:
    """Judge one release, or many of one mechanism joined together.

    Releases of several clean values, zero among them, show more than one: the own grid of a large
    clean value can pass for a lattice. Fewer than about ten judged numbers say little: a number off
    any lattice is a multiple of the finest step with a chance of 1 in 8 or less.

    Args:
        released: any shape.
        std: scale of its noise.
        step: the lattice that the mechanism declares; None: the coarsest one is found.
    """
    if not (math.isfinite(std) and std > 0):
        raise ValueError(f"std={std!r}: a finite number above 0 is needed")
    values = released.detach().flatten().double()
    near = values[values.abs() <= MAX_NOISE_SCALES * std]
    if step is not None:
        return LowBits(len(near), int(is_off_lattice(values, step).sum()), step)
    bits = lowest_set_bits(near)
    finest = math.floor(math.log2(FINEST_STEP * std))
    off = int((bits < finest).sum())
    if off:
        return LowBits(len(near), off, 0.0)
    if not bool((bits < NO_BIT).any()):
        return LowBits(len(near), off, 2.0 ** (finest + 52))  # zeros alone fit any lattice
    return LowBits(len(near), off, 2.0 ** float(bits.min()))

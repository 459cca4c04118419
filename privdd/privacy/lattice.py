"""Noised values on a public lattice, so that rounding tells nothing (Mironov 2012; Canonne, Kamath
and Steinke 2020).

``x + std * noise`` in floating point keeps the grid of ``x`` in its low bits. Here the clean value
is a whole number of *units*, the noise is rounded to whole units, both are added as integers, and
the sum is rounded to whole *steps*, which are
what is released. Step: the power of two at or below ``std * 2**-16``; unit: a power of two at or
below the clip norm times 2**-40, and below a step. Both come from public settings alone.

Proof: docs/explanation/guarantees.md, "Why a clipped sum is exact". For a whole number m and real
    noise Y, m + round(Y) =
round(m + Y): the noised sum is a function of m + Y alone, the ideal Gaussian or Laplace mechanism
on m, and so are the whole steps that it is rounded to, and the float that holds them: up to
2**24 steps (256 std and more) float32 is exact, beyond that
it rounds the integer, and no multiple of a step stops being one. (The integers have 64 bits;
contributions of more than 2**21 records may overflow them, by a function of their noised sum
again.) Only size is paid: a number loses less than 2**-40 of the clip norm for every record, or
2**-19 of it where it is one of an outer product.

Premise. A contribution is a function of its record alone, to the last bit: else a record's absence
moves those of others, by any amount at weights under which sums cancel. Kernels do not grant that;
``batch_invariance`` chooses the sizes of the batches in which contributions are computed, and tests
them on the machine. Every method here goes through it.

What remains. Y is drawn in float64 (``noise``): the tail beyond 2**-105 is cut, and the probability
of a released multiple of a step, an interval of Y of that width wherever it lies, is off by a
factor within about 1 +- 2**-31, through the rounding of the inverse distribution function (to
within 2**-51) and of its argument. By Pinsker's inequality ten million numbers of noise are within
5e-7 in total variation of ideal ones; the stated delta does not count that. Integers and
comparisons take time that depends on their values; nobody but the client is assumed to see it. A
seeded stream (``noise_source=seed``) is as secret as its seed.

No library sampler is used. OpenDP's and Canonne et al.'s exact discrete samplers give the noise
exactly where this one is off by 5e-7, but they draw number by number in arbitrary precision
(thousands of times slower for models and features), OpenDP cannot draw from a named stream, which
replays need, and the accounting would be that of the discrete Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privdd.core.types import Tensors

BITS = 16  # a step is at most this many powers of two below the noise
# a unit is so many powers of two below the clip norm: sums of 2**21 contributions stay below 2**62
UNIT_BITS = 40
# and at most so many below the noise, of which 12 standard deviations stay below 2**61
NOISE_BITS = 56
BLOCK = 2**18  # numbers of one block of rows: they stay in the cache
GPU_BLOCK = 2**26  # on a GPU: few and large kernels

ON_LATTICE = (
    "rounded towards zero on a public lattice and noised there: a function of the ideal mechanism"
)


def rows_at_once(rows: Tensor, width: int) -> int:
    """How many rows of ``width`` numbers are a block, where ``rows`` are."""
    return max(1, (BLOCK if rows.device.type == "cpu" else GPU_BLOCK) // max(1, width))


def _power_of_two_below(value: float) -> int:
    return math.floor(math.log2(value))


@dataclass(frozen=True)
class Lattice:
    """Released numbers are multiples of ``step``; contributions and their sums of ``unit``; both
    are powers of two.

    As int64 tensors: counts of units.
    """

    step: float
    unit: float

    @staticmethod
    def under(std: float, norm: float) -> Lattice:
        """The lattice for noise of scale ``std`` on contributions of at most ``norm``; both public.

        Raises ValueError for noise below 2**-24 of the norm, and for noise whose steps float32
        cannot hold."""
        step = 2.0 ** (_power_of_two_below(std) - BITS)
        if not 2.0**-100 < step < 2.0**100 or not norm <= 2.0**UNIT_BITS * step:
            raise ValueError(
                f"noise of scale {std:g} on a norm of {norm:g}: at least 2**-24 of the "
                "norm is needed"
            )
        unit = max(_power_of_two_below(norm) - UNIT_BITS, _power_of_two_below(std) - NOISE_BITS)
        return Lattice(step, 2.0**unit)

    def round_contributions(self, contributions: Tensor, factors: Tensor) -> Tensor:
        """Each record's contribution (n, ...) times its factor (n,), rounded towards zero, in units
        (n, ...).

        A record of factor 0 is zeros, even if it holds NaN.
        """
        shaped = factors.double().reshape(-1, *(1,) * (contributions.ndim - 1))
        scaled = contributions.detach().double() * (shaped / self.unit)
        return scaled.masked_fill_(shaped == 0, 0).to(torch.int64)

    def add_noise(
        self, whole: Tensor, std: float, draw: Callable[[tuple[int, ...]], Tensor]
    ) -> Tensor:
        """``whole`` plus noise, rounded to whole steps, in units. draw: shape -> standard noise,
        such as ``noise.normal``."""
        noise = (
            (draw(tuple(whole.shape)).double() * (std / self.unit))
            .round_()
            .to(whole.device, torch.int64)
        )
        units = round(self.step / self.unit)
        return noise.add_(whole).add_(units // 2).bitwise_and_(-units)  # units is a power of two

    def released(
        self, values: Tensors, std: float, draw: Callable[[tuple[int, ...]], Tensor]
    ) -> dict[str, Any]:
        """For a mechanism of one's own: clipped values of any shapes, noised, as arguments of
        ``Output`` (float32)."""
        lattice_points = {
            name: self.round_contributions(value.unsqueeze(0), torch.ones(1))[0]
            for name, value in values.items()
        }
        noised = {
            name: self.to_numbers(self.add_noise(units, std, draw))
            for name, units in lattice_points.items()
        }
        exact = {name: self.to_numbers(units) for name, units in lattice_points.items()}
        return {"value": noised, "exact": exact, "noise_std": std, "lattice": self.step}

    def to_numbers(self, whole: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Counts of units as floating-point numbers."""
        return (whole.double() * self.unit).to(dtype)

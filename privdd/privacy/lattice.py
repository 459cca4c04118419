"""Noised values on a public lattice, so that rounding tells nothing (Mironov 2012; Canonne, Kamath and Steinke 2020).

``x + std * noise`` in floating point keeps the grid of ``x`` in its low bits. Here the clean value is a whole number
of steps, the noise is rounded to whole steps, and they are added as integers. Step: the power of two at or below
``std * 2**-16``, from public settings alone.

Proof. Each contribution is clipped, divided by the public normaliser if there is one, and rounded towards zero to
whole steps: no number grows, so its L1 and L2 norms do not grow either, and sums of integers are exact, in any order.
So the sensitivity is what it was. For a whole number m and real noise Y, m + round(Y) = round(m + Y): the release is a
function of m + Y alone, the ideal Gaussian or Laplace mechanism on m, and so is the float that holds it: up to 2**24
steps (256 std and more) float32 is exact, beyond that it rounds the integer, and no multiple of a step stops being one.
Only size is paid: a number loses less than one step, 2**-16 of the noise, for every record.

Premise. A contribution is a function of its record alone, to the last bit: else a record's absence moves those of others,
by any amount at weights under which sums cancel. Kernels do not grant that; ``batch_invariance`` chooses the sizes of the
batches in which contributions are computed, and tests them on the machine. Every method here goes through it.

What remains. Y is drawn in float64 (``noise``): the tail beyond 2**-105 is cut, and a lattice point's probability is off
by a factor within about 1 +- 2**-31, through the rounding of the inverse distribution function (to within 2**-51) and of
its argument. By Pinsker's inequality ten million numbers of noise are within 5e-7 in total variation of ideal ones; the
stated delta does not count that. Integers and comparisons take time that depends on their values; nobody but the
client is assumed to see it. A seeded stream (``noise_source=seed``) is as secret as its seed.

No library sampler is used. OpenDP's and Canonne et al.'s exact discrete samplers give the noise exactly where this one
is off by 5e-7, but they draw number by number in arbitrary precision (thousands of times slower for models and
features), OpenDP cannot draw from a named stream, which replays need, and the accounting would be that of the
discrete Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privdd.core.types import Tensors

BITS = 16  # a step is at most this many powers of two below the noise
MAX_STEPS = 2.0**40  # steps in the largest contribution: sums of 2**22 of them stay far below 2**63
BLOCK = 2**18  # numbers of one block of rows: they stay in the cache
GPU_BLOCK = 2**26  # on a GPU: few and large kernels; the sums are of integers, so the same in any blocks

ON_LATTICE = "rounded towards zero to whole lattice steps, noised by whole steps: a function of the ideal mechanism"


def rows_at_once(rows: Tensor, width: int) -> int:
    """How many rows of ``width`` numbers are a block, where ``rows`` are."""
    return max(1, (BLOCK if rows.device.type == "cpu" else GPU_BLOCK) // max(1, width))


@dataclass(frozen=True)
class Lattice:
    """Numbers on it are multiples of ``step``, a power of two; as int64 tensors, counts of steps.

    largest: the most steps in any one number of a contribution.
    """

    step: float
    largest: float = MAX_STEPS

    @staticmethod
    def under(std: float, norm: float) -> Lattice:
        """The lattice for noise of scale ``std`` on contributions of at most ``norm``; both public.

        Raises ValueError for noise below 2**-24 of the norm, and for noise whose steps float32 cannot hold.
        """
        step = 2.0 ** (math.floor(math.log2(std)) - BITS)
        if not 2.0**-100 < step < 2.0**100 or not norm <= MAX_STEPS * step:
            raise ValueError(f"noise of scale {std:g} on a norm of {norm:g}: at least 2**-24 of the norm is needed")
        return Lattice(step, norm / step)

    def round_contributions(self, contributions: Tensor, factors: Tensor) -> Tensor:
        """Each record's contribution (n, ...) times its factor (n,), rounded towards zero, in steps (n, ...)."""
        parts = [part.to(torch.int64) for part in self._round_in_blocks(contributions, factors)]
        return torch.cat(parts) if parts else torch.zeros_like(contributions, dtype=torch.int64)

    def sum_contributions(self, contributions: Tensor, factors: Tensor) -> Tensor:
        """The sum of ``round_contributions`` over records, in steps: (n, ...) -> (...)."""
        running = RunningSum(self, contributions.shape[1:], contributions.device)
        running.add_contributions(contributions, factors)
        return running.current_sum()

    def _round_in_blocks(self, contributions: Tensor, factors: Tensor) -> Iterator[Tensor]:
        """``round_contributions`` in blocks of records. A record of factor 0 is zeros, even if it holds NaN."""
        exact = contributions if contributions.dtype in (torch.float32, torch.float64) else contributions.float()
        rows = rows_at_once(exact, math.prod(exact.shape[1:]))
        kind = torch.int32 if self.largest < 2**30 else torch.int64
        for x, factor in zip(exact.split(rows), factors.to(exact.device).split(rows)):
            weights = (factor.double() / self.step).to(exact.dtype)
            scaled = x.detach() * weights.reshape(-1, *(1,) * (exact.ndim - 1))
            if factor.device.type != "cpu" or bool((factor == 0).any()):  # to look would make the host wait for a GPU
                scaled.masked_fill_((factor == 0).reshape(-1, *(1,) * (exact.ndim - 1)), 0)
            yield scaled.to(kind)  # towards zero

    def add_noise(self, whole: Tensor, std: float, draw: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
        """``whole`` plus rounded noise, in steps. draw: shape -> standard noise, such as ``noise.normal``."""
        steps = (draw(tuple(whole.shape)).double() * (std / self.step)).round_()
        return whole + steps.to(whole.device, torch.int64)

    def released(self, values: Tensors, std: float, draw: Callable[[tuple[int, ...]], Tensor]) -> dict[str, Any]:
        """For a mechanism of one's own: clipped values of any shapes, noised, as arguments of ``Output`` (float32)."""
        whole = {name: self.round_contributions(value.unsqueeze(0), torch.ones(1))[0] for name, value in values.items()}
        noised = {name: self.to_numbers(self.add_noise(steps, std, draw)) for name, steps in whole.items()}
        exact = {name: self.to_numbers(steps) for name, steps in whole.items()}
        return {"value": noised, "exact": exact, "noise_std": std, "lattice": self.step}

    def to_numbers(self, whole: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Counts of steps as floating-point numbers."""
        return (whole.double() * self.step).to(dtype)


class RunningSum:
    """A running sum of rounded contributions, in steps and exact: in int32 for as many records as cannot overflow it,
    which is four times as fast as in int64."""

    def __init__(self, lattice: Lattice, shape: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.lattice = lattice
        self.wide = torch.zeros(tuple(shape), dtype=torch.int64, device=device)
        self.narrow: Tensor | None = None
        self.room = self.left = (2**31 - 1) // (math.ceil(lattice.largest) + 1)  # records that int32 holds

    def add_contributions(self, contributions: Tensor, factors: Tensor) -> None:
        """Add the contributions (n, ...) times their factors (n,), rounded."""
        for part in self.lattice._round_in_blocks(contributions, factors):
            if part.dtype != torch.int32 or len(part) > self.room:
                self.wide += part.sum(0)
                continue
            if len(part) > self.left:
                self._widen_sum()
            own = part[0] if len(part) == 1 else part.sum(0, dtype=torch.int32)
            self.narrow = own if self.narrow is None else self.narrow.add_(own)
            self.left -= len(part)

    def _widen_sum(self) -> None:
        if self.narrow is not None:
            self.wide += self.narrow
        self.narrow, self.left = None, self.room

    def current_sum(self) -> Tensor:
        """The sum so far, int64."""
        self._widen_sum()
        return self.wide

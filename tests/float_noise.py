"""Noise added in float32, as it once was, and the attack that reads presence off its low bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import Noise


def off_grid(released: Tensor, clean: Tensor) -> int:
    """How many numbers cannot have been clean + noise in float32.

    Where |released| <= |clean| / 4 the noise was within [3/4, 5/4] |clean|: every float32 there and
    ``clean`` itself is a multiple of half an ulp of ``clean``, hence so is their sum.
    """
    o = released.double().numpy()
    f = clean.double().numpy()
    grid = 2.0 ** (np.floor(np.log2(np.abs(f) + 1e-300)) - 24)
    small = (np.abs(o) <= np.abs(f) / 4) & (f != 0)
    cells = o[small] / grid[small]
    return int((cells != np.round(cells)).sum())


def in_float32(honest: Output, noise: Noise) -> Output:
    """The planted fault: the same clean value, off its lattice, with noise of the same size added
    in float32."""
    exact = {name: (t.double() * (1 + 1e-7)).float() for name, t in (honest.exact or {}).items()}
    drawn = {
        name: t + honest.noise_std * noise.normal(tuple(t.shape)).float()
        for name, t in exact.items()
    }
    return replace(honest, value=drawn, exact=exact)


class InFloat32(Mechanism):
    """Another mechanism with that fault."""

    def __init__(self, inner: Mechanism) -> None:
        self.inner = inner

    def __call__(self, value: Mapping[str, Tensor], noise: Noise) -> Output:
        return in_float32(self.inner(value, noise), noise)

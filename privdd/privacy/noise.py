"""Where privacy noise comes from: the public seed (a simulation), a secret of its owner, or the operating system.

Never torch's or numpy's global generator: siamese augmentation as published reseeds the global one
from a clock, which makes "noise" that can be guessed by enumeration.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from privdd.core.keys import Keys


class Noise(Protocol):
    """Standard draws; mechanisms scale them."""

    def normal(self, shape: tuple[int, ...]) -> Tensor: ...

    def laplace(self, shape: tuple[int, ...]) -> Tensor: ...

    def uniform(self, shape: tuple[int, ...]) -> Tensor: ...


def _laplace(u: Tensor) -> Tensor:
    """Inverse distribution function of Laplace(0, 1) at u in (0, 1)."""
    centred = u - 0.5
    return -torch.sign(centred) * torch.log1p(-2 * centred.abs())


@dataclass(frozen=True)
class SeededNoise:
    """Noise from one named stream of the public seed: repeatable by everyone, so for simulations only."""

    generator: torch.Generator

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64).clamp_(2**-54, 1 - 2**-53)

    def laplace(self, shape: tuple[int, ...]) -> Tensor:
        return _laplace(self.uniform(shape)).float()


@dataclass(frozen=True)
class SystemNoise:
    """Noise whose every bit is read from the operating system: not repeatable, for deployments."""

    def _read(self, count: int) -> bytes:
        return os.urandom(count)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        count = int(np.prod(shape, dtype=np.int64))
        bits = np.frombuffer(self._read(8 * count), dtype=np.uint64) >> np.uint64(11)
        return torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-53).reshape(shape)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(np.asarray(ndtri(self.uniform(shape).numpy()))).float().reshape(shape)

    def laplace(self, shape: tuple[int, ...]) -> Tensor:
        return _laplace(self.uniform(shape)).float()


@dataclass
class KeyStream:
    """SHAKE-256 (FIPS 202) of a 256-bit key and the number of the request: bits that only who knows the key can tell.

    Torch's generator on the CPU is no such stream: it keeps 32 bits of its seed, few enough to try them all.
    """

    key: bytes = field(repr=False)
    asked: int = 0

    def read(self, count: int) -> bytes:
        self.asked += 1
        return hashlib.shake_256(self.key + self.asked.to_bytes(8, "big")).digest(count)


@dataclass(frozen=True)
class SecretNoise(SystemNoise):
    """The operating system's noise with its bits from a key: repeatable for the owner of the secret alone."""

    stream: KeyStream

    def _read(self, count: int) -> bytes:
        return self.stream.read(count)


def noise_for(source: Literal["seed", "secret", "os"], keys: Keys) -> Noise:
    """The noise of one client in one round.

    Raises ValueError for a source other than ``seed``, ``secret`` and ``os``, and for a secret that is not given.
    """
    if source == "secret":
        return SecretNoise(KeyStream(keys.fold("secret", "noise").private()))
    if source == "os":
        return SystemNoise()
    if source == "seed":
        return SeededNoise(keys.fold("secret", "noise").torch())
    raise ValueError(f"privacy.noise_source={source!r}: allowed are seed, secret, os")

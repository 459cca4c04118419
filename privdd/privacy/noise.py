"""Where privacy noise comes from: the public seed (a simulation), a secret of its owner, or the
operating system.

Never torch's or numpy's global generator: siamese augmentation as published reseeds the global one
from a clock, which makes "noise" that can be guessed by enumeration. Draws are float64, by
inversion of the distribution function: a uniform tail probability on a grid of 2**-52, of 2**-105
where it is below ``TAIL``, then a sign. So a normal draw reaches 11.9 and a Laplace draw 73,
and there are no gaps between neighbouring draws that the lattice which mechanisms round to
(``lattice``)
could show. ``settings_hash`` is a short name for settings, the same for equal ones in every process
and another for any that
differ: by it two runs of other settings draw other noise.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from privdd.core.rng import Keys

GRID = 2.0**-53  # uniform draws are multiples of it
TAIL = 2.0**-5  # a probability below it gets as many bits again


class Noise(Protocol):
    """Standard draws, float64; mechanisms scale them and round them to their lattice."""

    def normal(self, shape: tuple[int, ...]) -> Tensor: ...

    def laplace(self, shape: tuple[int, ...]) -> Tensor: ...

    def uniform(self, shape: tuple[int, ...]) -> Tensor: ...


Draw = Callable[[tuple[int, ...]], Tensor]


@dataclass(frozen=True)
class CustomNoise:
    """Noise whose draws are given one by one, as functions of the shape: silence, other laws, the
    same draw again."""

    normal: Draw
    laplace: Draw
    uniform: Draw

    @staticmethod
    def around(inner: Noise, **changed: Draw) -> CustomNoise:
        """``inner`` with its normal, laplace or uniform draws replaced."""
        return CustomNoise(
            **{
                "normal": inner.normal,
                "laplace": inner.laplace,
                "uniform": inner.uniform,
                **changed,
            }
        )


# shows a mechanism's value before noise
ZERO_NOISE = CustomNoise(torch.zeros, torch.zeros, torch.zeros)


class InversionSampler:
    """Normal and Laplace draws by inversion, from multiples of ``GRID`` in [0, 1)."""

    @abstractmethod
    def uniform_grid(self, shape: tuple[int, ...]) -> Tensor:
        """Uniform multiples of ``GRID`` in [0, 1), float64."""

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Uniform in (0, 1), both ends excluded: P(draw < q) is q to within ``GRID``."""
        return self.uniform_grid(shape).clamp_min_(GRID / 2)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Standard normal."""
        tail, sign = self._draw_tail(shape)
        return torch.special.ndtri(tail.mul_(0.5)).mul_(sign)

    def laplace(self, shape: tuple[int, ...]) -> Tensor:
        """Laplace of scale 1."""
        tail, sign = self._draw_tail(shape)
        return tail.log_().mul_(sign)

    def _draw_tail(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """(uniform in (0, 1], the probability of a magnitude at least as large; a sign, -1 or
        1)."""
        doubled = self.uniform_grid(shape).mul_(2)
        sign = doubled.floor()
        tail = doubled.sub_(sign).reshape(-1)
        low = (tail < TAIL).nonzero()[:, 0]
        # inside the cell of the coarse grid
        finer = tail[low] + self.uniform((len(low),)).mul_(2 * GRID)
        tail.add_(GRID)[low] = finer  # the others: its middle
        return tail.reshape(shape), sign.mul_(2).sub_(1)


@dataclass(frozen=True)
class SeededNoise(InversionSampler):
    """Noise from one named stream of the public seed: repeatable by everyone, so for simulations
    only."""

    generator: torch.Generator

    def uniform_grid(self, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)  # 53 bits


class SystemNoise(InversionSampler):
    """Noise whose every bit is read from the operating system: not repeatable, for deployments."""

    def _random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def uniform_grid(self, shape: tuple[int, ...]) -> Tensor:
        count = int(np.prod(shape, dtype=np.int64))
        bits = np.frombuffer(self._random_bytes(8 * count), dtype=np.uint64) >> np.uint64(11)
        return torch.from_numpy(bits.astype(np.float64) * GRID).reshape(shape)


class SecretNoise(SystemNoise):
    """The operating system's noise with its bits from a 256-bit key: repeatable for the owner of
    the secret alone.

    SHAKE-256 (FIPS 202) of the key and the number of the request: bits that only who knows the key
    can tell. Torch's generator on the CPU is no such stream: it keeps 32 bits of its seed, few
    enough to try them all.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._asked = 0

    def _random_bytes(self, count: int) -> bytes:
        self._asked += 1
        return hashlib.shake_256(self._key + self._asked.to_bytes(8, "big")).digest(count)


def noise_for(source: Literal["seed", "secret", "os"], keys: Keys) -> Noise:
    """The noise of one client in one round.

    Raises ValueError for a source other than ``seed``, ``secret`` and ``os``, and for a secret that
    is not given."""
    if source == "secret":
        return SecretNoise(keys.fold("secret", "noise").private())
    if source == "os":
        return SystemNoise()
    if source == "seed":
        return SeededNoise(keys.fold("secret", "noise").torch())
    raise ValueError(f"privacy.noise_source={source!r}: allowed are seed, secret, os")


def settings_hash(value: Any) -> str:
    """Sixteen hexadecimal digits of plain data and of objects that hold it, such as a plan's
    mechanisms.

    An object counts by its class's name and its fields (its attributes, where it is no dataclass).
    What holds neither plain data nor objects of this kind, such as a function, counts by its type
    alone: its text names an address."""
    text = json.dumps(_plain_data(value), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _plain_data(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        if abs(value) < 2**53:
            return repr(float(value))
        return repr(value)
    if isinstance(value, Tensor):
        return ["Tensor", _plain_data(value.tolist())]
    if isinstance(value, Mapping):
        return {str(name): _plain_data(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_data(part) for part in value]
    kind = type(value).__name__
    if is_dataclass(value) and not isinstance(value, type):
        return [
            kind,
            {field.name: _plain_data(getattr(value, field.name)) for field in fields(value)},
        ]
    return [
        kind,
        _plain_data(vars(value))
        if type(value).__module__ != "builtins" and hasattr(value, "__dict__")
        else None,
    ]

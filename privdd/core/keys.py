"""Random streams, addressed by name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Keys:
    """A path of names under one seed: every random stream is addressed, never drawn in order.

    ``keys.fold("round", 3, "client", 2, "batch")`` is the same stream whatever ran before it, so a
    sweep over the noise multiplier sees the same batches, clients and noise directions.
    """

    seed: int
    path: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed!r}: an integer in [0, 2**63) is needed")

    def fold(self, *names: str | int) -> Keys:
        return Keys(self.seed, self.path + tuple(str(name) for name in names))

    def integer(self) -> int:
        """63 bits that depend on the seed and the whole path."""
        text = "\x1f".join((str(self.seed), *self.path)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1

    def torch(self, device: str | torch.device = "cpu") -> torch.Generator:
        return torch.Generator(device=device).manual_seed(self.integer())

    def numpy(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.integer()))

"""Named random streams: every stream is addressed by a path of names under one seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import torch


@dataclass(frozen=True)
class Keys:
    """A path of names under one seed: every random stream is addressed, never drawn in order.

    ``keys.fold("round", 3, "client", 2, "batch")`` is the same stream whatever ran before it. The
    seed is public: whoever takes
    part knows it. secret: what only the holder of the data knows; it decides ``private`` and
    nothing else."""

    seed: int
    path: tuple[str, ...] = ()
    secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if (
            isinstance(self.seed, bool)
            or not isinstance(self.seed, int)
            or not 0 <= self.seed < 2**63
        ):
            raise ValueError(f"seed={self.seed!r}: an integer in [0, 2**63) is needed")

    def fold(self, *names: str | int) -> Keys:
        return Keys(self.seed, self.path + tuple(str(name) for name in names), self.secret)

    def integer(self) -> int:
        """63 bits that depend on the seed and the whole path, and on no secret."""
        return (
            int.from_bytes(hashlib.blake2b(self._address_bytes(), digest_size=8).digest(), "big")
            >> 1
        )

    def private(self) -> bytes:
        """256 bits that nobody can work out without the secret (BLAKE2 keyed by it, RFC 7693).

        Raises ValueError where there is no secret.
        """
        if not self.secret:
            raise ValueError("privacy.noise_source=secret: no secret is set to draw noise from")
        key = hashlib.blake2b(self.secret).digest()
        return hashlib.blake2b(self._address_bytes(), key=key, digest_size=32).digest()

    def _address_bytes(self) -> bytes:
        """Seed and path as bytes; a separator inside a name is escaped, so that no two paths are
        written alike."""
        names = (name.replace("\x1b", "\x1b\x1b").replace("\x1f", "\x1b\x1f") for name in self.path)
        return "\x1f".join((str(self.seed), *names)).encode()

    def torch(self, device: str | torch.device = "cpu") -> torch.Generator:
        return torch.Generator(device=device).manual_seed(self.integer())

    def numpy(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.integer()))

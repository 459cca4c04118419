"""The coins of the canaries, and what is published of them before training: a hash that fixes them and tells nothing.

Coins are the bits of SHAKE-256 over a secret salt and the site's name, so whoever is shown the salt can see that they
were not chosen one by one. The commitment is SHA-256 over the salt, the coins and the whole public statement (how
canaries are to be scored included): none of the three can be changed afterwards (Halevi and Micali 1996 for hiding and
binding of hash commitments; here SHA-256 is taken as a random oracle).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

SALT = 32  # bytes
PURPOSE = b"privdd sealed canaries 1\0"


def coins_of(salt: bytes, site: str, count: int) -> np.ndarray:
    """(count,) bool, the site's fair coins: heads = the canary is in."""
    data = hashlib.shake_256(PURPOSE + b"coins\0" + salt + b"\0" + site.encode()).digest((count + 7) // 8)
    return np.unpackbits(np.frombuffer(data, np.uint8))[:count].astype(bool)


def stream(salt: bytes, name: str) -> int:
    """A seed in [0, 2**63) for draws of the issuer's, apart from the coins."""
    return int.from_bytes(hashlib.sha256(PURPOSE + name.encode() + b"\0" + salt).digest()[:8], "big") >> 1


def text_of(coins: np.ndarray) -> str:
    """Coins as text, "0110..."."""
    return "".join("1" if coin else "0" for coin in coins.tolist())


def commitment(salt: bytes, coins: Mapping[str, str], statement: Mapping[str, Any]) -> str:
    """What is published: 64 hexadecimal digits."""
    told = {"salt": salt.hex(), "coins": dict(coins), "statement": dict(statement)}
    data = json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return hashlib.sha256(PURPOSE + data).hexdigest()


def digest_of(*arrays: np.ndarray) -> str:
    """SHA-256 of arrays: types, shapes and bytes."""
    h = hashlib.sha256(PURPOSE)
    for array in arrays:
        h.update(f"{array.dtype.str}|{array.shape}|".encode())
        h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()

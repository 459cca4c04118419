"""Batches addressed by record: a record's priority in a draw does not depend on which others are present.

Each record of a draw gets a pseudo-random priority from its id alone; a batch is the records of
smallest priority among those present, which is a uniform sample without replacement. Removing one
record therefore moves a batch by at most one place, the order of records does not matter, and worlds
(replays of one client with different subsets of its records) can share one pass.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from privdd.core.keys import Keys

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's increment


def _mixed(z: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), modulo 2**64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def priorities(ids: Tensor, keys: Keys) -> Tensor:
    """A pseudo-random int64 for each id (n,), from ``keys`` and that id alone; smaller comes first."""
    return torch.from_numpy((_seeds(ids, keys) >> np.uint64(1)).astype(np.int64))


def _seeds(ids: Tensor, keys: Keys) -> np.ndarray:
    """64 bits for each id, from ``keys`` and that id alone."""
    return _mixed(_mixed(ids.cpu().numpy().astype(np.uint64) + GAMMA) ^ np.uint64(keys.integer()))


def record_normals(ids: Tensor, keys: Keys, numbers: int) -> Tensor:
    """Standard normal draws (n, numbers) of records with these ids (n,), each row from ``keys`` and its id alone.

    SplitMix64 started at each record's own 64 bits; uniforms of 52 bits, all inside (0, 1), through the
    inverse distribution function.
    """
    counter = np.arange(1, numbers + 1, dtype=np.uint64) * GAMMA
    bits = _mixed(_seeds(ids, keys)[:, None] + counter) >> np.uint64(12)
    return torch.from_numpy(ndtri((bits.astype(np.float64) + 0.5) * 2.0**-52).astype(np.float32))


def taken(priority: Tensor, present: Tensor, batch: int) -> Tensor:
    """The ``batch`` records of smallest priority of each row: (n,), (M, n) bool -> (M, n) bool."""
    order = priority.argsort(stable=True)
    ranked = present[:, order]
    chosen = torch.zeros_like(present)
    chosen[:, order] = ranked & (ranked.cumsum(1) <= batch)
    return chosen


def first(priority: Tensor, present: Tensor, count: int) -> Tensor:
    """Positions (M, count) of each row's records in order of priority, starting over when they run out.

    Raises ValueError for a row without any record.
    """
    if len(present) and not bool(present.any(1).all()):
        raise ValueError("a class without records has no real images to start from")
    order = priority.argsort(stable=True)
    rows = [order[row[order]] for row in present]
    return torch.stack([row[torch.arange(count) % len(row)] for row in rows])

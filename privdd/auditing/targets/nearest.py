"""Distances between records of any shape, in blocks."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 1024  # records at once: a block of distances to 100,000 others takes 800 MB


def flat(x: Tensor, scale: Tensor | None = None) -> Tensor:
    """(n, d) float64, each coordinate in units of ``scale`` (d,)."""
    values = x.flatten(1).double()
    return values if scale is None else values / scale


def spread(x: Tensor, pictures: bool) -> Tensor:
    """(d,): the units of each coordinate: one for the pixels of pictures, else its standard deviation over x (n, ...).

    A coordinate that is always the same counts as it is.
    """
    values = flat(x)
    if pictures:
        return torch.ones(values.shape[1], dtype=torch.float64)
    found = values.std(0)
    return torch.where(found > 0, found, torch.ones_like(found))


def nearest(records: Tensor, pool: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
    """Euclidean distances (n, count) of records (n, d) to the nearest of ``pool`` (m, d), ascending, and their places.

    Raises ValueError where the pool holds fewer than ``count``.
    """
    if len(pool) < count:
        raise ValueError(f"{len(pool)} records in the pool, {count} nearest are asked for")
    at = torch.cat([torch.cdist(part, pool).topk(count, largest=False).indices for part in records.split(BLOCK)])
    exact = torch.stack([(records - pool[column]).norm(dim=1) for column in at.T], 1)  # cdist rounds: a copy is at 0
    return exact, at


def same_as_any(records: Tensor, pool: Tensor) -> Tensor:
    """(n,) bool: whether a record of (n, d) is, number by number, one of ``pool`` (m, d)."""
    known = {row.numpy().tobytes() for row in pool.contiguous()}
    return torch.tensor([row.numpy().tobytes() in known for row in records.contiguous()], dtype=torch.bool)

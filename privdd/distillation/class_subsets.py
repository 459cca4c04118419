"""Distillation of many shadow runs at once, cut into cells: one class, learned from one subset of its records.

A world is one replay of the audited client, holding a random subset of its records. Distribution matching treats
each class alone, so worlds that hold the same records of a class share that class's synthetic images: K worlds over
n records need only as many cells as there are distinct subsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privdd.core.types import Artifact, Records, Shard, Upload
from privdd.training.ensemble import pooled


@dataclass(frozen=True)
class Cell:
    """One class and the subsets of its records that some world holds.

    at: positions (n_c,) in the pool; present: (m, n_c) bool, each row with at least one record.
    """

    label: int
    at: Tensor
    present: Tensor


@dataclass(frozen=True)
class Cells:
    """All cells of K worlds over one pool of records.

    slot: (K, C) position of the world's cell in the concatenation of ``groups``, -1 where the world
    holds no record of the class.
    """

    pool: Records
    groups: tuple[Cell, ...]
    slot: Tensor

    @property
    def labels(self) -> Tensor:
        """The class of every cell, (M,)."""
        return torch.cat([torch.full((len(g.present),), g.label) for g in self.groups] or [torch.zeros(0)]).long()

    @property
    def worlds(self) -> Tensor:
        """The first world that holds each cell, (M,)."""
        world = torch.zeros(len(self), dtype=torch.long)
        for k in reversed(range(len(self.slot))):
            world[self.slot[k][self.slot[k] >= 0]] = k
        return world

    def __len__(self) -> int:
        return sum(len(group.present) for group in self.groups)

    def map(self, x: Tensor) -> Cells:
        """The same cells over other images of the same records (a projection's, for instance)."""
        return replace(self, pool=Records(x, self.pool.y, self.pool.ids))


def one_world(records: Records, classes: int) -> Cells:
    """The cells of a single world that holds every record."""
    return cut(records, torch.ones(1, len(records), dtype=torch.bool), classes)


def cut(pool: Records, present: Tensor, classes: int, *, apart: bool = False) -> Cells:
    """The cells of the worlds whose records are the rows of ``present`` (K, n) bool.

    apart: no two worlds share a cell, because they differ by more than their records.
    """
    slot = torch.full((len(present), classes), -1, dtype=torch.long)
    groups: list[Cell] = []
    start = 0
    labels = pool.y.cpu()
    for label in labels.unique().tolist():
        at = (labels == label).nonzero()[:, 0]
        rows, inverse = present[:, at], torch.arange(len(present))
        if not apart:
            rows, inverse = rows.unique(dim=0, return_inverse=True)
        held = rows.any(1)
        position = torch.where(held, held.cumsum(0) - 1 + start, torch.full_like(inverse[:1], -1))
        slot[:, label] = position[inverse]
        groups.append(Cell(label, at, rows[held]))
        start += int(held.sum())
    return Cells(pool, tuple(groups), slot)


def batched_cells(shards: Sequence[Shard]) -> Cells:
    """The cells of K worlds of one client, from the records that each holds; no two worlds share a cell.

    The pool is what all worlds hold, then the rest, each in the order of ids. Raises ValueError where a
    record's id appears twice in a shard.
    """
    held = [set(shard.train.ids.tolist()) for shard in shards]
    if any(len(ids) != len(shard.train) for ids, shard in zip(held, shards)):
        raise ValueError("records: their ids must differ from each other")
    common = set.intersection(*held)
    pool, _ = pooled([shard.train for shard in shards])
    pool = pool.take(sorted(range(len(pool)), key=lambda i: (int(pool.ids[i]) not in common, int(pool.ids[i]))))
    present = torch.tensor([[identity in ids for identity in pool.ids.tolist()] for ids in held], dtype=torch.bool)
    return cut(pool, present.reshape(len(shards), len(pool)), shards[0].classes, apart=True)


def labelled(cells: Cells, images: Tensor, world: int) -> tuple[Tensor, Tensor]:
    """One world's set: images (m, c, h, w) by class and labels (m,), from the cells' (M, ipc, c, h, w)."""
    held = cells.slot[world][cells.slot[world] >= 0]
    return images[held].flatten(0, 1), cells.labels[held].repeat_interleave(images.shape[1])


def uploads(cells: Cells, images: Tensor, name: str = "images") -> list[Upload]:
    """What each world's client would send: its images under ``name`` and their labels."""
    sets = [labelled(cells, images, world) for world in range(len(cells.slot))]
    return [{name: Artifact({"x": x}), "labels": Artifact({"y": y})} for x, y in sets]

"""Distillation of many shadow runs at once, cut into cells: one class, learned from one subset of its records.

Distribution matching treats each class alone, so replays of the audited client that hold the same records of a class share
that class's synthetic images: K replays over n records need only as many cells as there are distinct subsets. Each record of
a draw gets a pseudo-random priority from its id alone; a batch is the records of smallest priority among those present,
which is a uniform sample without replacement. Removing one record therefore moves a batch by at most one place, the order of
records does not matter, and replays can share one pass. Batches are drawn on the CPU and sent to the records' device many
steps at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from privdd.core.device import stream_to_device
from privdd.core.rng import Keys
from privdd.core.types import Artifact, Records, Shard, Upload
from privdd.training.vectorised import pool_records


@dataclass(frozen=True)
class ClassSubsets:
    """One class and the subsets of its records that some world holds.

    at: positions (n_c,) in the pool; present: (m, n_c) bool, each row with at least one record.
    """

    label: int
    at: Tensor
    present: Tensor


@dataclass(frozen=True)
class ClassCells:
    """All cells of K worlds over one pool of records.

    slot: (K, C) position of the world's cell in the concatenation of ``groups``, -1 where the world
    holds no record of the class.
    """

    pool: Records
    groups: tuple[ClassSubsets, ...]
    slot: Tensor

    @property
    def labels(self) -> Tensor:
        """The class of every cell, (M,)."""
        return torch.cat([torch.full((len(g.present),), g.label) for g in self.groups] or [torch.zeros(0)]).long()

    @property
    def first_replays(self) -> Tensor:
        """The first world that holds each cell, (M,)."""
        world = torch.zeros(len(self), dtype=torch.long)
        for k in reversed(range(len(self.slot))):
            world[self.slot[k][self.slot[k] >= 0]] = k
        return world

    def __len__(self) -> int:
        return sum(len(group.present) for group in self.groups)

    def with_images(self, x: Tensor) -> ClassCells:
        """These cells over other images of the same records (a projection's, for instance)."""
        return replace(self, pool=Records(x, self.pool.y, self.pool.ids))


def single_client_cells(records: Records, classes: int) -> ClassCells:
    """The cells of a single world that holds every record."""
    return cut_cells(records, torch.ones(1, len(records), dtype=torch.bool), classes)


def cut_cells(pool: Records, present: Tensor, classes: int, *, apart: bool = False) -> ClassCells:
    """The cells of the worlds whose records are the rows of ``present`` (K, n) bool.

    apart: no two worlds share a cell, because they differ by more than their records.
    """
    slot = torch.full((len(present), classes), -1, dtype=torch.long)
    groups: list[ClassSubsets] = []
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
        groups.append(ClassSubsets(label, at, rows[held]))
        start += int(held.sum())
    return ClassCells(pool, tuple(groups), slot)


def batched_cells(shards: Sequence[Shard]) -> ClassCells:
    """The cells of K worlds of one client, from the records that each holds; no two worlds share a cell.

    The pool is what all worlds hold, then the rest, each in the order of ids. Raises ValueError where a
    record's id appears twice in a shard.
    """
    held = [set(shard.train.ids.tolist()) for shard in shards]
    if any(len(ids) != len(shard.train) for ids, shard in zip(held, shards)):
        raise ValueError("records: their ids must differ from each other")
    common = set.intersection(*held)
    pool, _ = pool_records([shard.train for shard in shards])
    pool = pool.take(sorted(range(len(pool)), key=lambda i: (int(pool.ids[i]) not in common, int(pool.ids[i]))))
    present = torch.tensor([[identity in ids for identity in pool.ids.tolist()] for ids in held], dtype=torch.bool)
    return cut_cells(pool, present.reshape(len(shards), len(pool)), shards[0].classes, apart=True)


def labelled_images(cells: ClassCells, images: Tensor, world: int) -> tuple[Tensor, Tensor]:
    """One world's set: images (m, c, h, w) by class and labels (m,), from the cells' (M, ipc, c, h, w)."""
    held = cells.slot[world][cells.slot[world] >= 0]
    return images[held].flatten(0, 1), cells.labels[held].repeat_interleave(images.shape[1])


def build_uploads(cells: ClassCells, images: Tensor, name: str = "images") -> list[Upload]:
    """The messages of the client in each replay: its images under ``name`` and their labels."""
    sets = [labelled_images(cells, images, world) for world in range(len(cells.slot))]
    return [{name: Artifact({"x": x}), "labels": Artifact({"y": y})} for x, y in sets]


GAMMA = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's increment


def _mix_bits(z: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), modulo 2**64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def record_priorities(ids: Tensor, keys: Keys) -> Tensor:
    """A pseudo-random int64 for each id (n,), from ``keys`` and that id alone; smaller comes first."""
    return torch.from_numpy((_record_seeds(ids, keys) >> np.uint64(1)).astype(np.int64))


def _record_seeds(ids: Tensor, keys: Keys) -> np.ndarray:
    """64 bits for each id, from ``keys`` and that id alone."""
    return _mix_bits(_mix_bits(ids.cpu().numpy().astype(np.uint64) + GAMMA) ^ np.uint64(keys.integer()))


def draw_record_normals(ids: Tensor, keys: Keys, numbers: int) -> Tensor:
    """Standard normal draws (n, numbers) of records with these ids (n,), each row from ``keys`` and its id alone.

    SplitMix64 started at each record's own 64 bits; uniforms of 52 bits, all inside (0, 1), through the
    inverse distribution function.
    """
    counter = np.arange(1, numbers + 1, dtype=np.uint64) * GAMMA
    bits = _mix_bits(_record_seeds(ids, keys)[:, None] + counter) >> np.uint64(12)
    return torch.from_numpy(ndtri((bits.astype(np.float64) + 0.5) * 2.0**-52).astype(np.float32))


def take_smallest(priority: Tensor, present: Tensor, batch: int) -> Tensor:
    """The ``batch`` records of smallest priority of each row: (n,), (M, n) bool -> (M, n) bool."""
    order = priority.argsort(stable=True)
    ranked = present[:, order]
    chosen = torch.zeros_like(present)
    chosen[:, order] = ranked & (ranked.cumsum(1) <= batch)
    return chosen


def first_records(priority: Tensor, present: Tensor, count: int) -> Tensor:
    """Positions (M, count) of each row's records in order of priority, starting over when they run out.

    Raises ValueError for a row without any record.
    """
    if len(present) and not bool(present.any(1).all()):
        raise ValueError("a class without records has no real images to start from")
    order = priority.argsort(stable=True)
    rows = [order[row[order]] for row in present]
    return torch.stack([row[torch.arange(count) % len(row)] for row in rows])


@dataclass(frozen=True)
class RealBatch:
    """The records of one step, on the records' device.

    at: positions (b,) in the pool of those that some cell takes, group by group; taken: of each group which of its u
    records each of its m cells takes, (m, u) bool.
    """

    at: Tensor
    taken: list[Tensor]


def draw_real_batches(cells: ClassCells, size: int, keys: Callable[[int], Keys], steps: int) -> Iterator[RealBatch]:
    """The batches of steps t = 0, ..., steps - 1, of ``size`` records of each cell, by the streams ``keys(t)``."""
    ids = cells.pool.ids.cpu()
    for drawn in stream_to_device(lambda t: _draw_step_records(cells, ids, size, keys(t)), steps, cells.pool.x.device):
        at, *rows = drawn.values()
        yield RealBatch(at, rows)


def _draw_step_records(cells: ClassCells, ids: Tensor, size: int, keys: Keys) -> dict[str, Tensor]:
    priority = record_priorities(ids, keys)
    chosen = [take_smallest(priority[g.at], g.present, size) for g in cells.groups]
    used = [rows.any(0) for rows in chosen]
    at = torch.cat([g.at[u] for g, u in zip(cells.groups, used)])
    return {"at": at, **{f"group {i}": rows[:, u] for i, (rows, u) in enumerate(zip(chosen, used))}}

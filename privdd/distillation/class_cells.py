"""Distillation of many shadow runs at once, cut into cells: one class of one run, learned from its
records; and what its images
start as: real records, noise, smooth noise, or noise with each class's own statistics.

Distribution matching treats each class alone. Each record of a draw gets a pseudo-random priority
from its id alone; a batch is the records of smallest priority among those present, which is a
uniform sample without replacement. Removing one record therefore moves a batch by at most one
place, the order of records does not matter, and replays can share one pass. Batches are drawn on
the CPU and sent to the records' device many steps at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import ndtri
from torch import Tensor

from privdd.core.device import copy_to_device, stream_to_device
from privdd.core.rng import Keys
from privdd.core.types import Artifact, ClientData, Records, RecordShape, State, Upload, is_image
from privdd.training.sgd import pool_records

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's increment
LOG = logging.getLogger("privdd")
PUBLIC_STARTS = ("noise", "smooth")  # starts that read no record
# of smooth noise: pixels between knots, mean and deviation at a knot
BLOB = 4
MIDDLE = 0.35
SPREAD = 0.25


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
        return torch.cat(
            [torch.full((len(g.present),), g.label) for g in self.groups] or [torch.zeros(0)]
        ).long()

    @property
    def worlds(self) -> Tensor:
        """The world of every cell, (M,)."""
        held = [(self.slot[:, group.label] >= 0).nonzero()[:, 0] for group in self.groups]
        return torch.cat(held or [torch.zeros(0)]).long()

    def __len__(self) -> int:
        return sum(len(group.present) for group in self.groups)

    def with_images(self, x: Tensor) -> ClassCells:
        """These cells over other images of the same records (a projection's, for instance)."""
        return replace(self, pool=Records(x, self.pool.y, self.pool.ids))


def single_client_cells(records: Records, classes: int) -> ClassCells:
    """The cells of a single world that holds every record."""
    return cut_cells(records, torch.ones(1, len(records), dtype=torch.bool), classes)


def cut_cells(pool: Records, present: Tensor, classes: int) -> ClassCells:
    """The cells of the worlds whose records are the rows of ``present`` (K, n) bool: one for each
    class that a world holds."""
    slot = torch.full((len(present), classes), -1, dtype=torch.long)
    groups: list[ClassSubsets] = []
    labels = pool.y.cpu()
    start = 0
    for label in labels.unique().tolist():
        positions = (labels == label).nonzero()[:, 0]
        held = present[:, positions].any(1)
        count = int(held.sum())
        slot[held, label] = torch.arange(start, start + count)
        groups.append(ClassSubsets(label, positions, present[:, positions][held]))
        start += count
    return ClassCells(pool, tuple(groups), slot)


def batched_cells(shards: Sequence[ClientData]) -> ClassCells:
    """The cells of K worlds of one client, from the records that each holds.

    The pool is what all worlds hold, then the rest, each in the order of ids. Raises ValueError
    where a record's id appears twice in a shard.
    """
    held = [set(shard.train.ids.tolist()) for shard in shards]
    if any(len(ids) != len(shard.train) for ids, shard in zip(held, shards)):
        raise ValueError("records: their ids must differ from each other")
    common = set.intersection(*held)
    pool, _ = pool_records([shard.train for shard in shards])
    pool = pool.take(
        sorted(range(len(pool)), key=lambda i: (int(pool.ids[i]) not in common, int(pool.ids[i])))
    )
    present = torch.tensor(
        [[identity in ids for identity in pool.ids.tolist()] for ids in held], dtype=torch.bool
    )
    return cut_cells(pool, present.reshape(len(shards), len(pool)), shards[0].classes)


def labelled_images(cells: ClassCells, images: Tensor, world: int) -> tuple[Tensor, Tensor]:
    """One world's set: images (m, c, h, w) by class and labels (m,), from the cells' (M, ipc, c, h,
    w)."""
    held = cells.slot[world][cells.slot[world] >= 0]
    return images[held].flatten(0, 1), cells.labels[held].repeat_interleave(images.shape[1])


def build_set_upload(
    images: Tensor, labels: Tensor, name: str = "images", *, private: bool
) -> Upload:
    """The message of images (M, ipc, c, h, w) of classes ``labels`` (M,)."""
    y = labels.repeat_interleave(images.shape[1])
    return {
        name: Artifact({"x": images.flatten(0, 1)}, private=private),
        "labels": Artifact({"y": y}, private=private),
    }


def build_uploads(cells: ClassCells, images: Tensor, name: str = "images") -> list[Upload]:
    """The messages of the client in each replay: its images under ``name`` and their labels."""
    sets = [labelled_images(cells, images, world) for world in range(len(cells.slot))]
    return [{name: Artifact({"x": x}), "labels": Artifact({"y": y})} for x, y in sets]


def _mix_bits(z: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), modulo 2**64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def record_priorities(ids: Tensor, keys: Keys) -> Tensor:
    """A pseudo-random int64 for each id (n,), from ``keys`` and that id alone; smaller comes
    first."""
    return torch.from_numpy((_record_seeds(ids, keys) >> np.uint64(1)).astype(np.int64))


def _record_seeds(ids: Tensor, keys: Keys) -> np.ndarray:
    """64 bits for each id, from ``keys`` and that id alone."""
    return _mix_bits(
        _mix_bits(ids.cpu().numpy().astype(np.uint64) + GAMMA) ^ np.uint64(keys.integer())
    )


def draw_record_normals(ids: Tensor, keys: Keys, numbers: int) -> Tensor:
    """Standard normal draws (n, numbers) of records with these ids (n,), each row from ``keys`` and
    its id alone.

    SplitMix64 started at each record's own 64 bits; uniforms of 52 bits, all inside (0, 1), through
    the inverse distribution function.
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
    """Positions (M, count) of each row's records in order of priority, starting over when they run
    out.

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

    at: positions (b,) in the pool of those that some cell takes, group by group; taken: of each
        group which of its u records each of its m cells takes, (m, u) bool.
    """

    at: Tensor
    taken: list[Tensor]


def draw_real_batches(
    cells: ClassCells, size: int, keys: Callable[[int], Keys], steps: int
) -> Iterator[RealBatch]:
    """The batches of steps t = 0, ..., steps - 1, of ``size`` records of each cell, by the streams
    ``keys(t)``."""
    ids = cells.pool.ids.cpu()
    for draws in stream_to_device(
        lambda t: _draw_step_records(cells, ids, size, keys(t)), steps, cells.pool.x.device
    ):
        positions, *rows = draws.values()
        yield RealBatch(positions, rows)


def _draw_step_records(cells: ClassCells, ids: Tensor, size: int, keys: Keys) -> dict[str, Tensor]:
    priority = record_priorities(ids, keys)
    chosen = [take_smallest(priority[g.at], g.present, size) for g in cells.groups]
    used = [rows.any(0) for rows in chosen]
    positions = torch.cat([g.at[u] for g, u in zip(cells.groups, used)])
    return {
        "at": positions,
        **{f"group {i}": rows[:, u] for i, (rows, u) in enumerate(zip(chosen, used))},
    }


Init = Literal["real", "noise", "smooth", "statistics"]


def check_init(init: str) -> None:
    """Raises ValueError for a start other than real, noise, smooth and statistics."""
    if init not in get_args(Init):
        raise ValueError(f"start={init!r}: allowed are {', '.join(get_args(Init))}")


def draw_noise_images(
    labels: Tensor, ipc: int, shape: RecordShape, keys: Keys | Sequence[Keys]
) -> Tensor:
    """N(0, 1) images (M, ipc, *shape): one stream per class, whatever other classes are there.

    keys: of all M cells, or one for each.
    """
    streams: Sequence[Keys]
    if isinstance(keys, Keys):
        streams = [keys] * len(labels)
    else:
        streams = keys
    noise_by_cell = [
        torch.randn((ipc, *shape), generator=stream.fold("noise", label).torch())
        for stream, label in zip(streams, labels.tolist(), strict=True)
    ]
    if noise_by_cell:
        return torch.stack(noise_by_cell)
    return torch.zeros((0, ipc, *shape))


def start_streams(cells: ClassCells, keys: Keys, own: Sequence[Keys] | None) -> Keys | list[Keys]:
    """The streams that images start from: ``keys`` for all cells, or for each cell its world's in
    ``own`` (K,)."""
    if own is None:
        return keys.fold("start")
    return [own[k].fold("start") for k in cells.worlds.tolist()]


def draw_smooth_images(
    labels: Tensor, ipc: int, shape: RecordShape, keys: Keys | Sequence[Keys]
) -> Tensor:
    """Low-frequency noise in [0, 1], (M, ipc, *shape), from the same streams: matching need not
    smooth it first. The numbers of a row of a table have no neighbours: each is drawn alone."""
    if not is_image(shape):
        return (MIDDLE + SPREAD * draw_noise_images(labels, ipc, shape, keys)).clamp(0, 1)
    channels, height, width = shape
    knots = draw_noise_images(labels, ipc, (channels, -(-height // BLOB), -(-width // BLOB)), keys)
    blown = F.interpolate(
        knots.flatten(0, 1), size=(height, width), mode="bicubic", align_corners=False
    )
    return (MIDDLE + SPREAD * blown).clamp(0, 1).unflatten(0, knots.shape[:2])


def draw_public_start(
    init: str, labels: Tensor, ipc: int, shape: RecordShape, keys: Keys | Sequence[Keys]
) -> Tensor:
    """Images (M, ipc, *shape) of a start that reads no record: noise or smooth."""
    return (draw_smooth_images if init == "smooth" else draw_noise_images)(labels, ipc, shape, keys)


def scale_noise(noise: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Noise (M, ipc, c, h, w) with row m's channel mean and deviation (M, c)."""
    return mean[:, None, :, None, None] + std[:, None, :, None, None] * noise


def draw_initial_images(
    init: str,
    cells: ClassCells,
    ipc: int,
    shape: RecordShape,
    keys: Keys | Sequence[Keys],
    *,
    total: int | None = None,
) -> Tensor:
    """The first images (M, ipc, *shape) of every cell; each world starts as it would if run alone.

    real: the cell's records of smallest priority, starting over where it has fewer than ``ipc``;
    noise: N(0, 1), shared by the cells of a class; smooth: see ``draw_smooth_images``; statistics:
        N(0, 1) with the channel means and deviations of the cell's records (``total``: see
        ``channel_statistics``). keys: one for all cells,
    or one for each.
    """
    check_init(init)
    if init == "real":
        return _select_real_images(cells, ipc, shape, keys)
    noise = draw_public_start(init, cells.labels, ipc, shape, keys).to(cells.pool.x.device)
    if init in PUBLIC_STARTS or not len(cells):
        return noise
    held = copy_to_device(
        [g.at[present] for g in cells.groups for present in g.present], cells.pool.x.device
    )
    return scale_noise(
        noise, *_stack_statistics([cells.pool.x[positions] for positions in held], total)
    )


def _select_real_images(
    cells: ClassCells, ipc: int, shape: RecordShape, keys: Keys | Sequence[Keys]
) -> Tensor:
    ids = cells.pool.ids.cpu()
    streams: Sequence[Keys]
    if isinstance(keys, Keys):
        streams = [keys] * len(cells)
    else:
        streams = keys
    held = [(g.at, present[None]) for g in cells.groups for present in g.present]
    rows = [
        positions[first_records(record_priorities(ids[positions], key.fold("real")), present, ipc)]
        for (positions, present), key in zip(held, streams, strict=True)
    ]
    if rows:
        return cells.pool.x[torch.cat(rows).to(cells.pool.x.device)]
    return torch.zeros((0, ipc, *shape))


def carry_over_images(fresh: Tensor, labels: Tensor, memory: Mapping[str, Tensor]) -> Tensor:
    """``fresh`` images (M, ipc, ...) with those of classes that ``memory`` holds in their place."""
    if "images/x" not in memory or not len(labels):
        return fresh
    earlier = dict(zip(memory["images/label"].tolist(), memory["images/x"].to(fresh)))
    return torch.stack([earlier.get(label, new) for label, new in zip(labels.tolist(), fresh)])


def images_to_memory(images: Tensor, labels: Tensor) -> State:
    """The client's memory of its images (M, ipc, ...) and their classes (M,) for the next round."""
    return {"images/x": images, "images/label": labels}


def memory_of_replay(cells: ClassCells, images: Tensor, world: int) -> State:
    """The memory of images of the client in each replay."""
    held = cells.slot[world][cells.slot[world] >= 0]
    return images_to_memory(images[held], cells.labels[held])


def warn_short_classes(shard: ClientData, ipc: int, keys: Keys) -> None:
    """Say which classes of a client cannot fill a real start, or that it holds nothing; replays do
    not."""
    if "world" in keys.path:
        return
    if not len(shard.train):
        LOG.warning("client %d holds no records: it sends an empty synthetic set", shard.client)
        return
    counts = torch.bincount(shard.train.y.cpu(), minlength=shard.classes)
    if short := ((counts > 0) & (counts < ipc)).nonzero()[:, 0].tolist():
        LOG.warning(
            "client %d: classes %s hold fewer than ipc=%d records: a real start repeats them",
            shard.client,
            short,
            ipc,
        )


def channel_statistics(x: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """Mean and deviation over images and pixels of x (n, c, h, w): two tensors (c,).

    total: divide the sums by this many images instead of n. That is what FedLGD's published code
    does with the client's whole number of images: the values then scale with the class's share.
    """
    pixels = max(len(x) if total is None else total, 1) * x.shape[2] * x.shape[3]
    mean = x.sum((0, 2, 3), dtype=torch.float64) / pixels
    square = x.square().sum((0, 2, 3), dtype=torch.float64) / pixels
    return mean.to(x), (square - mean.square()).clamp_min(0).sqrt().to(x)


def class_statistics(
    records: Records, classes: int, *, released: bool = False
) -> tuple[Tensor, Tensor]:
    """``channel_statistics`` of every class, (C, c) each; a class without records has mean 0 and
    deviation 0.

    released: divide by the client's total, as the published code does.
    """
    parts = [records.x[records.y == label] for label in range(classes)]
    return _stack_statistics(parts, len(records) if released else None)


def _stack_statistics(parts: Sequence[Tensor], total: int | None) -> tuple[Tensor, Tensor]:
    rows = [channel_statistics(x, total) for x in parts]
    return torch.stack([mean for mean, _ in rows]), torch.stack([std for _, std in rows])

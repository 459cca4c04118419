"""Where synthetic images start: real records, noise, smooth noise, or noise with each class's own statistics."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from privdd.core.device import copy_to_device
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard, State
from privdd.distillation.class_cells import ClassCells, first_records, record_priorities

LOG = logging.getLogger("privdd")
Init = Literal["real", "noise", "smooth", "statistics"]
PUBLIC_STARTS = ("noise", "smooth")  # starts that read no record
BLOB, MIDDLE, SPREAD = 4, 0.35, 0.25  # of smooth noise: pixels between knots, mean and deviation at a knot


def check_init(init: str) -> None:
    """Raises ValueError for a start other than real, noise, smooth and statistics."""
    if init not in get_args(Init):
        raise ValueError(f"start={init!r}: allowed are {', '.join(get_args(Init))}")


def draw_noise_images(labels: Tensor, ipc: int, shape: tuple[int, int, int], keys: Keys | Sequence[Keys]) -> Tensor:
    """N(0, 1) images (M, ipc, *shape): one stream per class, whatever other classes are there.

    keys: of all M cells, or one for each.
    """
    streams = [keys] * len(labels) if isinstance(keys, Keys) else keys
    drawn = [
        torch.randn((ipc, *shape), generator=stream.fold("noise", label).torch())
        for stream, label in zip(streams, labels.tolist(), strict=True)
    ]
    return torch.stack(drawn) if drawn else torch.zeros((0, ipc, *shape))


def start_streams(cells: ClassCells, keys: Keys, own: Sequence[Keys] | None) -> Keys | list[Keys]:
    """The streams that images start from: ``keys`` for all cells, or for each cell its world's in ``own`` (K,)."""
    return keys.fold("start") if own is None else [own[k].fold("start") for k in cells.first_replays.tolist()]


def draw_smooth_images(labels: Tensor, ipc: int, shape: tuple[int, int, int], keys: Keys | Sequence[Keys]) -> Tensor:
    """Low-frequency noise in [0, 1], (M, ipc, *shape), from the same streams: matching need not smooth it first."""
    channels, height, width = shape
    knots = draw_noise_images(labels, ipc, (channels, -(-height // BLOB), -(-width // BLOB)), keys)
    blown = F.interpolate(knots.flatten(0, 1), size=(height, width), mode="bicubic", align_corners=False)
    return (MIDDLE + SPREAD * blown).clamp(0, 1).unflatten(0, knots.shape[:2])


def draw_public_start(
    init: str, labels: Tensor, ipc: int, shape: tuple[int, int, int], keys: Keys | Sequence[Keys]
) -> Tensor:
    """Images (M, ipc, *shape) of a start that reads no record: noise or smooth."""
    return (draw_smooth_images if init == "smooth" else draw_noise_images)(labels, ipc, shape, keys)


def scale_noise(noise: Tensor, statistics: ClassStatistics) -> Tensor:
    """Noise (M, ipc, c, h, w) with row m's channel mean and deviation (M, c)."""
    mean, std = (values[:, None, :, None, None] for values in (statistics.mean, statistics.std))
    return mean + std * noise


def draw_initial_images(
    init: str,
    cells: ClassCells,
    ipc: int,
    shape: tuple[int, int, int],
    keys: Keys | Sequence[Keys],
    *,
    total: int | None = None,
) -> Tensor:
    """The first images (M, ipc, *shape) of every cell; each world starts as it would if run alone.

    real: the cell's records of smallest priority, starting over where it has fewer than ``ipc``;
    noise: N(0, 1), shared by the cells of a class; smooth: see ``draw_smooth_images``; statistics: N(0, 1) with the
    channel means and deviations of the cell's records (``total``: see ``channel_statistics``). keys: one for all cells,
    or one for each.
    """
    check_init(init)
    if init == "real":
        return _select_real_images(cells, ipc, shape, keys)
    noise = draw_public_start(init, cells.labels, ipc, shape, keys).to(cells.pool.x.device)
    if init in PUBLIC_STARTS or not len(cells):
        return noise
    held = copy_to_device([g.at[present] for g in cells.groups for present in g.present], cells.pool.x.device)
    rows = [channel_statistics(cells.pool.x[at], total) for at in held]
    return scale_noise(
        noise, ClassStatistics(torch.stack([mean for mean, _ in rows]), torch.stack([std for _, std in rows]))
    )


def _select_real_images(
    cells: ClassCells, ipc: int, shape: tuple[int, int, int], keys: Keys | Sequence[Keys]
) -> Tensor:
    ids = cells.pool.ids.cpu()
    if isinstance(keys, Keys):
        priority = record_priorities(ids, keys.fold("real"))
        rows = [g.at[first_records(priority[g.at], g.present, ipc)] for g in cells.groups]
    else:
        held = [(g.at, present[None]) for g in cells.groups for present in g.present]
        rows = [
            at[first_records(record_priorities(ids[at], key.fold("real")), present, ipc)]
            for (at, present), key in zip(held, keys, strict=True)
        ]
    return cells.pool.x[torch.cat(rows).to(cells.pool.x.device)] if rows else torch.zeros((0, ipc, *shape))


def carry_over_images(fresh: Tensor, labels: Tensor, memory: Mapping[str, Tensor]) -> Tensor:
    """``fresh`` images (M, ipc, ...) with those of classes that ``memory`` holds in their place."""
    if "images/x" not in memory or not len(labels):
        return fresh
    known = dict(zip(memory["images/label"].tolist(), memory["images/x"].to(fresh)))
    return torch.stack([known.get(label, new) for label, new in zip(labels.tolist(), fresh)])


def images_to_memory(images: Tensor, labels: Tensor) -> State:
    """The client's memory of its images (M, ipc, ...) and their classes (M,) for the next round."""
    return {"images/x": images, "images/label": labels}


def memory_of_replay(cells: ClassCells, images: Tensor, world: int) -> State:
    """The memory of images of the client in each replay."""
    held = cells.slot[world][cells.slot[world] >= 0]
    return images_to_memory(images[held], cells.labels[held])


def short_classes(records: Records, classes: int, ipc: int) -> list[int]:
    """Held classes with fewer records than ``ipc``: a real start repeats some of theirs."""
    counts = torch.bincount(records.y.cpu(), minlength=classes)
    return ((counts > 0) & (counts < ipc)).nonzero()[:, 0].tolist()


def warn_short_classes(shard: Shard, ipc: int, keys: Keys) -> None:
    """Say which classes of a client cannot fill a real start, or that it holds nothing; replays do not."""
    if "world" in keys.path:
        return
    if not len(shard.train):
        LOG.warning("client %d holds no records: it sends an empty synthetic set", shard.client)
    elif short := short_classes(shard.train, shard.classes, ipc):
        LOG.warning(
            "client %d: classes %s hold fewer than ipc=%d records: a real start repeats them", shard.client, short, ipc
        )


@dataclass(frozen=True)
class ClassStatistics:
    """mean (C, c) and std (C, c) of the pixel values of each class and channel."""

    mean: Tensor
    std: Tensor

    def __post_init__(self) -> None:
        if self.mean.ndim != 2 or self.mean.shape != self.std.shape:
            raise ValueError(
                f"statistics need mean and std of one shape (C, c); got {self.mean.shape}, {self.std.shape}"
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


def class_statistics(records: Records, classes: int, *, released: bool = False) -> ClassStatistics:
    """Statistics of every class; a class without records has mean 0 and deviation 0.

    released: divide by the client's total, as the published code does.
    """
    total = len(records) if released else None
    rows = [channel_statistics(records.x[records.y == label], total) for label in range(classes)]
    return ClassStatistics(torch.stack([mean for mean, _ in rows]), torch.stack([std for _, std in rows]))

"""Records for canaries: crafted ones, unlike one another and unlike any data, or real ones in the tail with wrong labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attacks.canaries import independent, patches
from privdd.canary.sealed_files import Canary, records
from privdd.core.errors import BadConfig

POOL = 3  # candidates for each canary
MOST = 6000  # candidates of a draw: the choice among them is a QR decomposition
FEW = 100  # a draw that brings fewer than one new one in so many is the last

Pair = tuple[np.ndarray, np.ndarray]


def made(given: Mapping[str, Any], sites: Sequence[str], seed: int) -> Canary:
    """The canaries of an issue: ``count`` for each site, different ones. given: shape and classes, or from.

    Raises BadConfig, DamagedRun.
    """
    total = given["count"] * len(sites)
    if "from" in given:
        x, y = records(Path(given["from"]))
        x, y = mislabelled(x, y, int(given.get("classes", int(y.max()) + 1)), total, seed)
    else:
        x, y = crafted(given["shape"], given["classes"], total, seed)
    order = np.random.default_rng(seed).permutation(total)  # no site gets the tail of the choice
    return Canary(x[order], y[order], np.repeat(list(sites), given["count"]))


def crafted(shape: Sequence[int], classes: int, count: int, seed: int) -> Pair:
    """(x (count, *shape) float32 in [0, 1], y (count,) int64, all classes in turn), nearly orthogonal.

    Images (c, h, w) or (h, w) are blocks of black and white, as of ``audit.canaries``; any other shape is zeros and
    ones by fair coins. Out of a pool the rows are taken that the ones before span least. Raises BadConfig where
    fewer different ones than that are found.
    """
    pool = _pool(shape, count, seed)
    if len(pool) < count:
        said = f"{len(pool)} different canaries were drawn, {count} are needed; lower count= or take a larger shape"
        raise BadConfig(f"shape={','.join(map(str, shape))}: {said}")
    rows = pool.reshape(len(pool), -1)
    chosen = independent(rows - rows.mean(), count)
    return np.ascontiguousarray(pool[chosen], np.float32), np.arange(count, dtype=np.int64) % classes


def _pool(shape: Sequence[int], count: int, seed: int) -> np.ndarray:
    """Different candidates (n, *shape): drawn again while they are too few, until a draw brings hardly any new one."""
    draw, total = _drawing(shape, seed), max(count, min(POOL * count, MOST))
    pool, new = np.zeros((0, *shape), np.float32), 1
    while len(pool) < count and new:
        more = np.concatenate([pool, draw(total)])
        more = more[_distinct(more)]
        pool, new = more, (len(more) - len(pool)) * FEW // total
    return pool


def _drawing(shape: Sequence[int], seed: int) -> Callable[[int], np.ndarray]:
    """n -> n candidates (n, *shape) float32, others at each call."""
    if len(shape) in (2, 3) and min(shape[-2:]) > 3:
        image, generator = (*[1] * (3 - len(shape)), *shape), torch.Generator().manual_seed(seed)
        return lambda n: patches(image, n, generator).numpy().reshape(n, *shape)  # type: ignore[arg-type]
    coins = np.random.default_rng(seed)
    return lambda n: coins.integers(0, 2, (n, *shape)).astype(np.float32)


def mislabelled(x: np.ndarray, y: np.ndarray, classes: int, count: int, seed: int) -> Pair:
    """The ``count`` different records furthest from the mean of their class, each with a wrong label drawn evenly.

    x (n, ...), y (n,). These must be nobody's training records. Raises BadConfig for too few records or classes.
    """
    if classes < 2:
        raise BadConfig("from=: its records have one class; at least 2 are needed for a wrong label")
    kept = _distinct(x)
    x, y = x[kept], y[kept]
    if count > len(y):
        raise BadConfig(f"from=: {len(y)} different records are too few for {count} canaries")
    flat = x.reshape(len(x), -1).astype(np.float64)
    far = np.zeros(len(y))
    for label in np.unique(y):
        mine = y == label
        far[mine] = np.linalg.norm(flat[mine] - flat[mine].mean(0), axis=1)
    chosen = np.sort(np.argsort(-far, kind="stable")[:count])
    shift = np.random.default_rng(seed).integers(1, classes, count)
    return np.ascontiguousarray(x[chosen]), ((y[chosen] + shift) % classes).astype(np.int64)


def _distinct(x: np.ndarray) -> list[int]:
    """Places of the rows that equal none before them: two equal canaries would blur each other's coins."""
    return sorted({x[at].tobytes(): at for at in reversed(range(len(x)))}.values())

"""Which real records each step of matching sees: drawn by record on the CPU, sent to the records' device many steps at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from privdd.core.keys import Keys
from privdd.core.packed import packed
from privdd.distillation.class_subsets import Cells
from privdd.distillation.sampling import priorities, taken


@dataclass(frozen=True)
class Batch:
    """The records of one step, on the records' device.

    at: positions (b,) in the pool of those that some cell takes, group by group; taken: of each group which of its u
    records each of its m cells takes, (m, u) bool.
    """

    at: Tensor
    taken: list[Tensor]


def real_batches(cells: Cells, size: int, keys: Callable[[int], Keys], steps: int) -> Iterator[Batch]:
    """The batches of steps t = 0, ..., steps - 1, of ``size`` records of each cell, by the streams ``keys(t)``."""
    ids = cells.pool.ids.cpu()
    for drawn in packed(lambda t: _drawn(cells, ids, size, keys(t)), steps, cells.pool.x.device):
        at, *rows = drawn.values()
        yield Batch(at, rows)


def _drawn(cells: Cells, ids: Tensor, size: int, keys: Keys) -> dict[str, Tensor]:
    priority = priorities(ids, keys)
    chosen = [taken(priority[g.at], g.present, size) for g in cells.groups]
    used = [rows.any(0) for rows in chosen]
    at = torch.cat([g.at[u] for g, u in zip(cells.groups, used)])
    return {"at": at, **{f"group {i}": rows[:, u] for i, (rows, u) in enumerate(zip(chosen, used))}}

"""The records of each step of matching, against the draw of one step written out, on either
side."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from privdd.core.rng import Keys
from privdd.core.types import Records, Shard
from privdd.distillation.class_cells import (
    ClassCells,
    batched_cells,
    draw_real_batches,
    record_priorities,
    take_smallest,
)
from tests.fake_device import fake_gpu, repeated

SIZE = 3
CLASSES = 4


def cells(seed: int) -> ClassCells:
    """Three worlds of forty records, ids far from positions."""
    count = 40
    data = Records(
        torch.rand((count, 1, 4, 4), generator=Keys(seed).torch()),
        torch.arange(count) % CLASSES,
        7 * torch.arange(count) + 1000,
    )
    masks = torch.rand((3, count), generator=Keys(seed).fold("worlds").torch()) < 0.6
    empty = data.take(torch.arange(0))
    return batched_cells(
        [Shard(0, data.take(mask.nonzero()[:, 0]), empty, empty, CLASSES) for mask in masks]
    )


@pytest.mark.parametrize("there", [False, True])
def test_batches_are_the_records_of_smallest_priority_of_every_cell(there: bool) -> None:
    held = cells(0)
    keys = Keys(5)
    if there:
        with fake_gpu():
            moved = replace(held, pool=held.pool.to("cuda"))
            found = [
                (b.at.cpu(), [rows.cpu() for rows in b.taken])
                for b in draw_real_batches(moved, SIZE, keys.fold, 5)
            ]
    else:
        found = [(b.at, b.taken) for b in draw_real_batches(held, SIZE, keys.fold, 5)]
    assert len(found) == 5
    for t, (at, rows) in enumerate(found):
        priority = record_priorities(held.pool.ids, keys.fold(t))
        place = 0
        for group, chosen in zip(held.groups, rows, strict=True):
            expected = take_smallest(priority[group.at], group.present, SIZE)
            positions = at[place : place + chosen.shape[1]]
            for cell, row in zip(expected, chosen, strict=True):
                assert set(positions[row].tolist()) == set(group.at[cell].tolist())
                assert int(row.sum()) == min(SIZE, int(cell.sum()))
            place += chosen.shape[1]
        assert place == len(at)


def test_more_steps_send_nothing_more() -> None:
    def run(steps: int) -> None:
        moved = replace(cells(1), pool=cells(1).pool.to("cuda"))
        for _ in draw_real_batches(moved, SIZE, Keys(5).fold, steps):
            pass

    assert repeated(run, 3, 12) == {}

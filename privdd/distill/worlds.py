"""All worlds in one pass: K replays of a client's distillation for little more than one.

Worlds share the network draw, the transforms and each record's place in the batch draw; where their
images start is each world's own. So a real record is embedded once per iteration for all worlds, a world's class mean is one row of
weights @ embeddings, and the synthetic sets go through the network together.
"""

from __future__ import annotations

from torch import Tensor

from privdd.core import Artifact, Records, Upload
from privdd.distill.cells import Cells, cut, join


def world_cells(fixed: Records, candidates: Records, masks: Tensor, classes: int, *, apart: bool = False) -> Cells:
    """The cells of K worlds: fixed records in all of them, candidate i in world k where masks[k, i].

    apart: worlds whose images start differently share no cell, not even with the same records.
    Raises ValueError for masks that are not bool (K, len(candidates)) or for a repeated id.
    """
    return cut(*join(fixed, candidates, masks), classes, apart=apart)


def labelled(cells: Cells, images: Tensor, world: int) -> tuple[Tensor, Tensor]:
    """One world's set: images (m, c, h, w) by class and labels (m,), from the cells' (M, ipc, c, h, w)."""
    held = cells.slot[world][cells.slot[world] >= 0]
    return images[held].flatten(0, 1), cells.labels[held].repeat_interleave(images.shape[1])


def uploads(cells: Cells, images: Tensor, name: str = "images") -> list[Upload]:
    """What each world's client would send: its images under ``name`` and their labels."""
    sets = [labelled(cells, images, world) for world in range(len(cells.slot))]
    return [{name: Artifact({"x": x}), "labels": Artifact({"y": y})} for x, y in sets]

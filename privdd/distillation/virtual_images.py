"""FedLGD's local virtual data: a long first distillation, then short refinements in the global model.

Huang et al. 2024 (FedLGD), section 3.3.1 and equation 1; the first distillation is plain distribution
matching in new random networks, each refinement matches in the current global feature extractor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from attacks.ranges import check_counts
from privdd.core.keys import Keys
from privdd.core.types import Shard, State, Tensors
from privdd.distillation.class_subsets import Cells, one_world
from privdd.distillation.distribution_matching import Matching, Streams, match
from privdd.distillation.initial_images import carried, check_init, initial_images, noise_images, remembered, starts
from privdd.distillation.networks import Networks, fixed, fresh
from privdd.distillation.private_matching import match_embeddings, public_views
from privdd.distillation.stand_ins import Distiller
from privdd.federated.channel import ClientContext
from privdd.models import ModelSpec, initial
from privdd.models.build import skeleton


@dataclass(frozen=True, kw_only=True)
class Virtual(Distiller):
    """How a client's virtual images are distilled, by distribution matching.

    ipc: images per class; start: real | noise | statistics; released_statistics: class statistics as
    the published code computes them (see ``class_statistics``); warmup, refine: settings of the first
    distillation and of each refinement; warmup_reads, refine_reads: noised reads of the records that
    each takes where a mechanism is set for "embedding".
    """

    warmup: Matching
    refine: Matching
    ipc: int = 10
    start: Literal["real", "noise", "statistics"] = "statistics"
    released_statistics: bool = False
    warmup_reads: int = 8
    refine_reads: int = 2

    def __post_init__(self) -> None:
        check_counts(self, "ipc", "warmup_reads", "refine_reads", under="virtual.")
        check_init(self.start)

    def distil(self, model: ModelSpec, shard: Shard, ctx: ClientContext) -> State:
        """The images of the first distillation, in new networks."""
        cells = one_world(shard.train, shard.classes)
        steps = stages(self, model, {}, shard, ctx, first=True, refine=False)
        return remembered(distilled(self, cells, {}, steps, shard, ctx), cells.labels)


def stages(
    virtual: Virtual,
    spec: ModelSpec,
    broadcast: Mapping[str, Tensors],
    shard: Shard,
    ctx: ClientContext,
    *,
    first: bool,
    refine: bool,
) -> list[tuple[Matching, Networks, Streams, int]]:
    """The matching runs of this round: settings, networks, streams and number of noised queries of each."""
    model = skeleton(spec, shard.shape, shard.classes)
    out = []
    if first:
        law, device = partial(initial, spec, shard.shape, shard.classes), shard.train.x.device
        networks = fresh(model, law, ctx.public("warmup", "networks"), device=device)
        out.append((virtual.warmup, networks, _streams(ctx, "warmup"), virtual.warmup_reads))
    if refine:
        out.append((virtual.refine, fixed(model, broadcast["model"]), _streams(ctx, "refine"), virtual.refine_reads))
    return out


def _streams(ctx: ClientContext, part: str) -> Streams:
    return Streams(ctx.keys.fold(part, "batch"), ctx.public(part, "augment"))


def distilled(
    virtual: Virtual,
    cells: Cells,
    memory: Mapping[str, Tensor],
    steps: list[tuple[Matching, Networks, Streams, int]],
    shard: Shard,
    ctx: ClientContext,
    own: Sequence[Keys] | None = None,
) -> Tensor:
    """The images (M, ipc, c, h, w) of every cell after this round's ``steps``; ``own``: see ``starts``."""
    total = len(cells.pool) if virtual.released_statistics else None
    images = initial_images(virtual.start, cells, virtual.ipc, shard.shape, starts(cells, ctx.keys, own), total=total)
    images = carried(images.to(shard.train.x), cells.labels, memory)
    for settings, networks, streams, _ in steps:
        images = match(cells, images, networks, settings, streams)
    return images


def protected_images(
    virtual: Virtual,
    memory: Mapping[str, Tensor],
    steps: list[tuple[Matching, Networks, Streams, int]],
    shard: Shard,
    ctx: ClientContext,
) -> tuple[Tensor, Tensor]:
    """Images (C, ipc, c, h, w) and classes (C,) of the public list, by noised reads of the records alone.

    Raises ValueError unless the images start as noise.
    """
    if virtual.start != "noise":
        raise ValueError(f"virtual.start={virtual.start!r}: a guarantee needs noise, any other start reads the records")
    labels = torch.tensor(ctx.problem.class_list)
    images = noise_images(labels, virtual.ipc, shard.shape, ctx.keys.fold("start")).to(shard.train.x)
    images = carried(images, labels, memory)
    for settings, networks, streams, reads in steps:
        views = public_views(networks, reads, shard.shape, settings, streams)
        images = match_embeddings(images, views, shard.train, settings, ctx)
    return images, labels

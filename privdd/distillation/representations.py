"""Representation distillation (FedRD, equation 5): matching in the space of a projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from privdd.core.loop_timing import timed_steps
from privdd.core.types import Artifact, Records, Shard, Upload
from privdd.distillation.augmentation import Transform, draw_transform
from privdd.distillation.class_cells import build_uploads, single_client_cells
from privdd.distillation.distribution_matching import (
    Embed,
    MatchingSettings,
    MatchingStreams,
    Networks,
    descend_images,
    embed_images,
    iterate_networks,
    match_distributions,
    record_embeddings,
)
from privdd.distillation.initial_images import draw_initial_images, draw_noise_images
from privdd.distillation.private_matching import (
    GRADIENT_QUERY,
    draw_public_maps,
    images_by_class,
    match_embeddings,
    match_noised_gradients,
    release_gradients,
    restrict_as_printed,
)
from privdd.federated.channel import ClientContext

Shape = tuple[int, int, int]
UPLOAD_NAME = "representations"


def streams_of(ctx: ClientContext) -> MatchingStreams:
    """One round's streams: the client's own batches, everyone's transforms."""
    return MatchingStreams(ctx.keys.fold("batch"), ctx.public("augment"))


def distil_representations(
    project: Callable[[Tensor], Tensor],
    networks: Networks,
    shard: Shard,
    settings: MatchingSettings,
    ctx: ClientContext,
    *,
    dpc: int,
    start: str,
    shape: Shape,
) -> Upload:
    """Representations (m, *shape) of the classes that the client holds, with their labels.

    project: the client's map (b, c, h, w) -> (b, *shape); real records are transformed, projected and
    embedded, representations are embedded as they are. start: in the space of the projection.
    """
    cells = single_client_cells(shard.train, shard.classes)
    if not len(cells):
        return build_uploads(cells, torch.zeros(0, dpc, *shape), UPLOAD_NAME)[0]
    projected = cells.with_images(embed_images(project, shard.train.x))
    first = draw_initial_images(start, projected, dpc, shape, ctx.keys.fold("start")).to(shard.train.x)
    settings = replace(settings, augment_synthetic=False)
    return build_uploads(
        cells, match_distributions(cells, first, networks, settings, streams_of(ctx), real_map=project), UPLOAD_NAME
    )[0]


def protected_representations(
    project: Callable[[Tensor], Tensor],
    networks: Networks,
    shard: Shard,
    settings: MatchingSettings,
    ctx: ClientContext,
    *,
    dpc: int,
    reads: int,
    shape: Shape,
) -> Upload:
    """Representations of every class of the public list, from noise and what the mechanisms released.

    project must be public: drawn without the records, or trained under a guarantee. Representations
    start as projected noise images, which has the scale of projected records where N(0, 1) may not.
    """
    labels = torch.tensor(ctx.problem.class_list)
    noise = draw_noise_images(labels, dpc, shard.shape, ctx.keys.fold("start")).to(shard.train.x)
    first = embed_images(project, noise.flatten(0, 1).abs().clamp(max=1)).unflatten(0, noise.shape[:2])
    settings = replace(settings, augment_synthetic=False)
    if ctx.protected("embedding"):
        views = draw_public_maps(networks, reads, shard.shape, settings, streams_of(ctx), project)
        images = match_embeddings(first, views, shard.train, settings, ctx)
    else:
        images = match_noised_gradients(
            first,
            networks,
            _project_records(shard.train, project),
            replace(settings, augment="none"),
            streams_of(ctx),
            ctx,
        )
    return {
        UPLOAD_NAME: Artifact({"x": images.flatten(0, 1)}, private=True),
        "labels": Artifact({"y": labels.repeat_interleave(dpc)}, private=True),
    }


def printed_representations(
    project: Callable[[Tensor], Tensor],
    networks: Networks,
    shard: Shard,
    settings: MatchingSettings,
    ctx: ClientContext,
    *,
    dpc: int,
    shape: Shape,
) -> Upload:
    """Equation 7 as FedRD prints it: representations from N(0, 1), each step's clipped mean gradient noised.

    project is the client's own map, trained on its records without protection, and real records are transformed
    before it: what is sent is no function of the mechanism's outputs alone, and nothing about it is private. Raises
    ValueError for a mechanism that clips records.
    """
    if not ctx.protected(GRADIENT_QUERY) or ctx.mechanisms[GRADIENT_QUERY].per_record:
        raise ValueError(
            f"printed=True: equation 7 clips the batch's mean gradient; set privacy=aggregate_clip, not {GRADIENT_QUERY}"
        )
    ctx = restrict_as_printed(shard, ctx)
    labels, streams = torch.tensor(ctx.problem.class_list), streams_of(ctx)
    images = draw_noise_images(labels, dpc, shape, ctx.keys.fold("start")).to(shard.train.x)
    velocity, cells = torch.zeros_like(images), images_by_class(shard.train, ctx.problem.class_list)
    for t, embed in zip(timed_steps(range(settings.iterations)), iterate_networks(networks, settings.iterations)):
        transform = draw_transform(settings.augment, shard.shape, streams.augment.fold(t).torch())

        def embed_real(x: Tensor, embed: Embed = embed, transform: Transform = transform) -> Tensor:
            return embed(project(transform(x)))

        gradient = release_gradients(
            images,
            embed,
            cells,
            ctx.problem.class_list,
            ctx,
            batch=settings.batch,
            real=embed_real,
            real_chunk=settings.chunk,
        )
        images, velocity = descend_images(images, velocity, gradient, settings)
    flags = {"public_map": False}
    return {
        UPLOAD_NAME: Artifact({"x": images.flatten(0, 1)}, flags=flags),
        "labels": Artifact({"y": labels.repeat_interleave(dpc)}),  # which classes a client holds
    }


def _project_records(records: Records, project: Callable[[Tensor], Tensor]) -> Records:
    """The records as their representations."""
    return Records(record_embeddings(project, records.x), records.y, records.ids)

"""Distillation whose images depend on the records only through noised queries.

Two queries of ``privdd.privacy`` serve it. "embedding": a few noisy mean embeddings, then any number
of matching steps on them. "synthetic_gradient": every step's gradient is noised (clipped by record,
or by batch as the papers print it). Either way every class of a public list is synthesised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privdd.core.long_loops import turns
from privdd.core.types import Records
from privdd.distillation.augmentation import draw
from privdd.distillation.clipped_gradient import by_class, release_gradients
from privdd.distillation.distribution_matching import Matching, Streams, descend, matching_gradient
from privdd.distillation.fitting import Fitting, fit
from privdd.distillation.networks import CHUNK, Embed, Networks, embedded, in_turn
from privdd.distillation.noisy_embedding import class_counts, noisy_embeddings
from privdd.federated.channel import ClientContext
from privdd.privacy.mechanism import Mechanism

QUERIES = ("embedding", "synthetic_gradient")


def is_protected(mechanisms: Mapping[str, Mechanism]) -> bool:
    """Whether a mechanism is set for the query that a client's synthetic images depend on."""
    return any(name in mechanisms for name in QUERIES)


def refuse_batch_norm(norm: str | None, where: str) -> None:
    """Raises ValueError for batch norm, under which one record moves the embeddings of all others."""
    if norm == "batch":
        raise ValueError(f"{where}.norm=batch: with it one record changes all embeddings; use instance, group or none")


def refuse_ignored(fitting: Fitting | None, least: float, mechanisms: Mapping[str, Mechanism]) -> None:
    """Raises ValueError for settings that have an effect only with a mechanism that this run does not set."""
    if fitting is not None and "embedding" not in mechanisms:
        raise ValueError(
            f"fitting={fitting!r}: follows noised reads, so privacy must set a mechanism for 'embedding' "
            "(privacy=public_embedding); set fitting=null for plain matching in the same map"
        )
    if least and "class_counts" not in mechanisms:
        raise ValueError(
            f"least={least!r}: compares noised counts, so privacy must set a mechanism for 'class_counts'; "
            "set least=0 to send every class"
        )


@dataclass(frozen=True)
class Views:
    """The public maps of one run: for each, the embedding of a record and that of a synthetic image."""

    real: Sequence[Embed]
    synthetic: Sequence[Embed]


def public_views(
    networks: Networks,
    count: int,
    shape: tuple[int, int, int],
    settings: Matching,
    streams: Streams,
    real_map: Embed | None = None,
) -> Views:
    """``count`` maps, each with its own network and transform of records of ``shape``.

    real_map: a public map between transformed record and network (FedRD's frozen projection).
    """
    real, synthetic = [], []
    for k, embed in enumerate(in_turn(networks, count)):
        transform = draw(settings.augment, shape, streams.augment.fold(k).torch())
        real.append(_after(transform if real_map is None else _after(transform, real_map), embed))
        synthetic.append(_after(transform, embed) if settings.augment_synthetic else embed)
    return Views(real, synthetic)


def _after(inner: Callable[[Tensor], Tensor], outer: Embed) -> Embed:
    return lambda x: outer(inner(x))


def mean_embeddings(images: Tensor, embed: Embed, chunk: int = CHUNK) -> Tensor:
    """Mean embedding (C, p) of each class's images (C, ipc, c, h, w), without a graph."""
    return embedded(embed, images.flatten(0, 1), chunk).unflatten(0, images.shape[:2]).mean(1)


def match_embeddings(images: Tensor, views: Views, records: Records, settings: Matching, ctx: ClientContext) -> Tensor:
    """Images (C, ipc, c, h, w) after matching noisy mean embeddings, one class of the public list each.

    Embeddings are centred on those of the images at the start, which are public. Noised class counts
    divide the sums where ``privacy`` sets a mechanism for "class_counts", else its public constant.
    """
    classes = ctx.problem.class_list
    counts = class_counts(records, classes, ctx) if ctx.protected("class_counts") else None
    centres = [mean_embeddings(images, view) for view in views.synthetic]
    targets = noisy_embeddings(views.real, records, classes, ctx, centres=centres, counts=counts)
    velocity = torch.zeros_like(images)
    for t in turns(range(settings.iterations)):
        k = t % len(targets)
        gradient = matching_gradient(images, targets[k], views.synthetic[k], chunk=settings.chunk)
        images, velocity = descend(images, velocity, gradient, settings)
    return images


def fit_embeddings(
    images: Tensor, view: Embed, records: Records, fitting: Fitting, ctx: ClientContext, *, least: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(images of the kept classes (M, ipc, c, h, w), which of the public list are kept (C,) bool).

    One noised read of the records in one public map; the rest is post-processing. A class whose noised count
    is below ``least`` is left out: its target would be noise about the centre, and its images mislabelled.
    """
    classes = ctx.problem.class_list
    counts = class_counts(records, classes, ctx) if ctx.protected("class_counts") else None
    centre = mean_embeddings(images, view).mean(0)
    (targets,) = noisy_embeddings([view], records, classes, ctx, centres=[centre], counts=counts)
    kept = torch.ones(len(images), dtype=torch.bool) if counts is None else (counts >= least).cpu()
    return fit(images[kept], targets.to(images)[kept], view, fitting), kept


def match_protected(
    images: Tensor, networks: Networks, records: Records, settings: Matching, streams: Streams, ctx: ClientContext
) -> Tensor:
    """Images (C, ipc, c, h, w) after steps whose gradients are noised one by one.

    records: as the networks see them (FedRD: already projected by its public map).
    """
    shape = tuple(images.shape[2:])
    velocity, cells = torch.zeros_like(images), by_class(records, ctx.problem.class_list)
    for t, network in zip(turns(range(settings.iterations)), in_turn(networks, settings.iterations)):
        transform = draw(settings.augment, shape, streams.augment.fold(t).torch())  # type: ignore[arg-type]
        embed = _after(transform, network)
        gradient = release_gradients(images, embed, cells, ctx.problem.class_list, ctx, batch=settings.batch)
        images, velocity = descend(images, velocity, gradient, settings)
    return images


def spent(mechanisms: object, maps: int, iterations: int) -> dict[str, int]:
    """How often each query is asked for one class in one run of ``maps`` maps and ``iterations`` steps."""
    counts = {"embedding": maps, "synthetic_gradient": iterations, "class_counts": 1}
    return {name: count for name, count in counts.items() if name in mechanisms}  # type: ignore[operator]


@dataclass(frozen=True)
class Steps:
    """All that a matching step needs beside the records; anyone can compute it from the public random streams.

    maps: step -> the map of images (transform, then network); project: a record (b, c, h, w) as an
    image of that space; start: N(0, 1) images (m, c, h, w) -> what the images start as. untestable: why nothing can
    be tested on these steps, "" where it can.
    """

    maps: Callable[[int], Embed]
    settings: Matching
    project: Embed = lambda x: x
    start: Embed = lambda noise: noise
    untestable: str = ""


def seen_maps(networks: Networks, settings: Matching, streams: Streams, shape: tuple[int, int, int]) -> Networks:
    """Step -> map: that step's transform and then its network, as records and images are both seen."""

    def at(step: int) -> Embed:
        transform = draw(settings.augment, shape, streams.augment.fold(step).torch())
        network = networks(step)
        return lambda x: network(transform(x))

    return at


def clean_start(project: Callable[[Tensor], Tensor]) -> Embed:
    """FedRD's start: noise images clamped to [0, 1] and projected."""
    return lambda noise: project(noise.abs().clamp(max=1)).detach()

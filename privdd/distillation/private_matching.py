"""Distillation whose images depend on the records only through noised queries.

Two queries serve it. "embedding": a few noisy mean embeddings, then any number of matching steps on
them. "synthetic_gradient": every step's gradient is noised (clipped by record, or by batch as the
papers print it). For the matching loss ||mean_i h(x_i) - mean_j h(s_j)||**2 of one class the
gradient is a mean over records of g_i = -2 J^T (h(x_i) - mean_j h(s_j)), J the Jacobian of the
synthetic mean embedding: each g_i reads one record, so clipping it bounds what that record does. It
costs a pull-back per record. Either way every class of a public list is synthesised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap

from privdd.core.loop_timing import timed_steps
from privdd.core.types import ClientData, Records, RecordShape, name_class_cell
from privdd.distillation.distribution_matching import (
    CHUNK,
    Embed,
    MatchingSettings,
    MatchingStreams,
    Networks,
    compose_maps,
    descend_images,
    draw_transform,
    embed_images,
    iterate_networks,
    matching_gradient,
    record_embeddings,
)
from privdd.distillation.image_fitting import FittingSettings, fit_to_embeddings
from privdd.federated.channel import ClientContext
from privdd.privacy.batch_invariance import compute_rows
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.mechanisms import ClippedSum

# Under add/remove one record changes one row (its class) of one release per map, by a vector of
# norm at
# most the clip norm: K full-batch maps over R rounds are sqrt(K R) / z-GDP, and everything computed
# from the targets afterwards is post-processing. This needs maps that are public (drawn from public
# coins or from earlier protected outputs), that treat each record alone (no batch norm in training
# mode), and a release for every class of a public list, present or not.
QUERY = "embedding"
GRADIENT_QUERY = "synthetic_gradient"
QUERIES = ("embedding", "synthetic_gradient")


def release_embeddings(
    maps: Sequence[Embed],
    records: Records,
    class_list: Sequence[int],
    ctx: ClientContext,
    *,
    centres: Sequence[Tensor] | None = None,
    counts: Tensor | None = None,
    chunk: int = 64,
) -> list[Tensor]:
    """Target mean embeddings of every class, one (C, p) tensor a map, through
    ``ctx.mechanism("embedding")``.

    A map that puts logits behind its features has both clipped together. centres: a public point
    (p,) or one a class (C, p) for each map, which embeddings are measured and clipped from (default
    0), for instance the mean embedding of the current synthetic images. Without counts the
    mechanism's normaliser, a public constant, divides the sums: target = centre + sum / N, shrunk
    or stretched for
    classes of another size. counts: public or already protected class sizes (C,), see
    ``estimation_weights``. With a sampling probability below 1 every map sees its own Poisson
    sample. Raises ValueError for
    centres that do not match the maps.
    """
    if centres is not None and len(centres) != len(maps):
        raise ValueError(f"centres: one for each of {len(maps)} maps is needed, got {len(centres)}")
    targets = []
    for index, embed in enumerate(maps):
        sampled = ctx.sample(QUERY, len(records))
        if bool(sampled.all()):
            batch = records
        else:
            batch = records.take(sampled.to(records.y.device))
        rows = record_embeddings(embed, batch.x, chunk)
        if centres is None:
            centre = torch.zeros(rows.shape[1:])
        else:
            centre = centres[index].detach()
        centre = centre.to(rows).expand(len(class_list), rows.shape[1])
        sums = []
        for label, middle in zip(class_list, centre):
            contributions = {"embedding": rows[batch.y == label] - middle}
            sums.append(
                ctx.mechanism(QUERY, contributions, partition=name_class_cell(label))["embedding"]
            )
        moves = torch.stack(sums).to(centre)
        if counts is not None:
            mechanism = ctx.mechanisms[QUERY]
            moves *= estimation_weights(
                counts,
                mechanism,  # type: ignore[arg-type]
                centre.shape[1],
                len(maps),
            ).to(centre)
        targets.append(centre + moves)
    return targets


def estimation_weights(counts: Tensor, mechanism: ClippedSum, width: int, reads: int) -> Tensor:
    """Factors that turn a released sum / N into an estimate of each class's mean move from its
    centre, (C, 1).

    A noised sum is n m + z C e with |m| about C and e standard normal in ``width`` dimensions; the
    linear estimate of least squared error over ``reads`` such sums is the sum times
    n / (n**2 + z**2 width / reads): nearly 1 / n where the class is large, nearly 0 (the target
    stays at its public centre) where noise drowns it. n is the expected number of sampled records,
    at least 1."""
    expected = (counts.reshape(-1, 1) * mechanism.sampling_probability).clamp_min(1.0)
    drowned = mechanism.noise_multiplier**2 * width / reads
    return mechanism.normaliser * expected / (expected.square() + drowned)


def release_class_counts(records: Records, class_list: Sequence[int], ctx: ClientContext) -> Tensor:
    """Noised number of records of each class, (C,) at least 0, through
    ``ctx.mechanism("class_counts")``.

    One record adds one to one class: set clip_norm 1 and normaliser 1. Classes come from a public
    list, so presence is protected as well. With a sampling probability q below 1 a Poisson sample
    is counted and the noised count divided by q.
    """
    q = float(ctx.mechanisms["class_counts"].sampling_probability)
    y = records.y[ctx.sample("class_counts", len(records)).to(records.y.device)]
    is_of_class = y.unsqueeze(1) == torch.tensor(list(class_list), device=y.device)
    return ctx.mechanism("class_counts", {"count": is_of_class.float()})["count"].clamp_min(0) / q


def record_image_gradients(
    images: Tensor, embed: Embed, x: Tensor, *, chunk: int | None = None
) -> Tensor:
    """Every record's exact gradient g_i: images (m, c, h, w), x (n, c, h, w) -> (n, m, c, h, w).

    The graph holds the synthetic images only; ``chunk`` records are pulled back at a time (default:
    1, a loop, on a CPU, where it is fastest; 32 elsewhere). The mean over records is the gradient
    of the matching loss.
    """
    chunk = chunk or (1 if images.device.type == "cpu" else 32)
    mean, pull = vjp(lambda s: embed(s).mean(0), images.detach())  # type: ignore[misc]  # v -> J^T v
    residuals = -2 * (record_embeddings(embed, x) - mean.detach())
    if chunk == 1:
        parts = [pull(row)[0].detach().unsqueeze(0) for row in residuals]
        if parts:
            return torch.cat(parts)
        return images.new_zeros(0, *images.shape)
    return compute_rows(
        lambda _, part: {"": vmap(pull)(part)[0].detach()}, {}, residuals, at_most=chunk
    )[""]


def mean_image_gradients(
    images: Tensor,
    embed: Embed,
    batches: Sequence[Tensor],
    real: Embed | None = None,
    real_chunk: int = CHUNK,
) -> Tensor:
    """The gradient of every class's matching loss in one pass: images (C, m, c, h, w), a batch for
    each.

    real: the map of the records (None: as the images'); so many at a time (0: all, which batch norm
        in train mode needs). A class whose batch is empty has gradient zero.
    """
    leaf = images.detach().requires_grad_(True)
    with torch.enable_grad():
        means = embed(leaf.flatten(0, 1)).unflatten(0, images.shape[:2]).mean(1)
    rows = embed_images(real or embed, torch.cat(list(batches)), real_chunk).split(
        [len(x) for x in batches]
    )
    targets = [
        part.mean(0) if len(part) else class_mean.detach() for part, class_mean in zip(rows, means)
    ]
    (gradient,) = torch.autograd.grad((means - torch.stack(targets)).square().sum(), leaf)
    return gradient


def images_by_class(records: Records, class_list: Sequence[int]) -> list[Tensor]:
    """The images (n_c, c, h, w) of every class of the list: cut once for many steps, for each cut
    waits for a GPU."""
    return [records.x[records.y == label] for label in class_list]


def release_gradients(
    images: Tensor,
    embed: Embed,
    records: Records | Sequence[Tensor],
    class_list: Sequence[int],
    ctx: ClientContext,
    *,
    batch: int | None = None,
    chunk: int | None = None,
    real: Embed | None = None,
    real_chunk: int = CHUNK,
) -> Tensor:
    """Protected matching gradient of every class's images, through
    ``ctx.mechanism("synthetic_gradient")``.

    images (C, m, c, h, w) -> (C, m, c, h, w); records: or their images ``images_by_class``. A
    mechanism that clips records gets every record's gradient of a Poisson sample of the class. One
    that clips the batch mean, as the papers print it, gets that mean, of a fixed number ``batch``
    of records drawn anew (None = all of the class), which ``real`` embeds where it is given (see
    ``mean_image_gradients``)."""
    cells: Sequence[Tensor]
    if isinstance(records, Records):
        cells = images_by_class(records, class_list)
    else:
        cells = records
    if ctx.mechanisms[GRADIENT_QUERY].per_record:
        sampled = (_select_rows(x, ctx.sample(GRADIENT_QUERY, len(x))) for x in cells)
        rows = (
            record_image_gradients(class_images, embed, x, chunk=chunk)
            for class_images, x in zip(images, sampled)
        )
    else:
        batches = [_draw_fixed_batch(x, batch, label, ctx) for x, label in zip(cells, class_list)]
        means = mean_image_gradients(images, embed, batches, real, real_chunk)
        rows = (mean.expand(max(len(x), 1), *mean.shape) for mean, x in zip(means, batches))
    released = [
        ctx.mechanism(GRADIENT_QUERY, {"gradient": gradients}, partition=name_class_cell(label))[
            "gradient"
        ]
        for label, gradients in zip(class_list, rows)
    ]
    return torch.stack(released).to(images)


def _select_rows(x: Tensor, sample: Tensor) -> Tensor:
    """The rows of x (n, ...) that a mask of the CPU (n,) marks: a GPU is sent their positions, and
    not waited for."""
    if bool(sample.all()):
        return x
    return x[sample.nonzero()[:, 0].to(x.device)]


def _draw_fixed_batch(x: Tensor, batch: int | None, label: int, ctx: ClientContext) -> Tensor:
    if batch is None or len(x) <= batch:
        return x
    step = len(ctx.outputs)
    order = torch.randperm(
        len(x), generator=ctx.keys.fold("batch", GRADIENT_QUERY, label, step).torch()
    )
    return x[order[:batch].to(x.device)]


def is_protected(mechanisms: Mapping[str, Mechanism]) -> bool:
    """Whether a mechanism is set for the query that a client's synthetic images depend on."""
    return any(name in mechanisms for name in QUERIES)


def restrict_as_printed(shard: ClientData, ctx: ClientContext) -> ClientContext:
    """The context in which a client sends the classes that it holds, as the papers print it, where
    the batch mean is clipped.

    Which these are depends on the records and is protected by nothing: sound variants send every
    class of the public list."""
    mechanism = ctx.mechanisms.get(GRADIENT_QUERY)
    held = set(shard.train.y.tolist())
    if mechanism is None or mechanism.per_record or not held:
        return ctx
    classes = tuple(label for label in ctx.problem.class_list if label in held)
    return replace(ctx, problem=replace(ctx.problem, class_list=classes))


def check_no_batch_norm(norm: str | None, where: str) -> None:
    """Raises ValueError for batch norm, under which one record moves the embeddings of all
    others."""
    if norm == "batch":
        raise ValueError(
            f"{where}.norm=batch: with it one record changes all embeddings; use "
            "instance, group or none"
        )


def check_fitting_settings(
    fitting: FittingSettings | None, least: float, mechanisms: Mapping[str, Mechanism]
) -> None:
    """Raises ValueError for settings that have an effect only with a mechanism that this run does
    not set."""
    if fitting is not None and "embedding" not in mechanisms:
        raise ValueError(
            f"fitting={fitting!r}: follows noised reads, so privacy must set a mechanism "
            "for 'embedding' "
            "(privacy=public_embedding); set fitting=null for plain matching in the same map"
        )
    if least and "class_counts" not in mechanisms:
        raise ValueError(
            f"least={least!r}: compares noised counts, so privacy must set a mechanism "
            "for 'class_counts'; "
            "set least=0 to send every class"
        )


def draw_public_maps(
    networks: Networks,
    count: int,
    shape: RecordShape,
    settings: MatchingSettings,
    streams: MatchingStreams,
    real_map: Embed | None = None,
) -> list[tuple[Embed, Embed]]:
    """``count`` maps, of a record and of a synthetic image each, with its own network and transform
    of records of ``shape``.

    real_map: a public map between transformed record and network (FedRD's frozen projection).
    """
    maps = []
    for k, embed in enumerate(iterate_networks(networks, count)):
        transform = draw_transform(settings.augment, shape, streams.augment.fold(k).torch())
        real = compose_maps(
            transform if real_map is None else compose_maps(transform, real_map), embed
        )
        maps.append((real, compose_maps(transform, embed) if settings.augment_synthetic else embed))
    return maps


def mean_embeddings(images: Tensor, embed: Embed, chunk: int = CHUNK) -> Tensor:
    """Mean embedding (C, p) of each class's images (C, ipc, c, h, w), without a graph."""
    return embed_images(embed, images.flatten(0, 1), chunk).unflatten(0, images.shape[:2]).mean(1)


def match_embeddings(
    images: Tensor,
    views: Sequence[tuple[Embed, Embed]],
    records: Records,
    settings: MatchingSettings,
    ctx: ClientContext,
) -> Tensor:
    """Images (C, ipc, c, h, w) after matching noisy mean embeddings, one class of the public list
    each.

    Embeddings are centred on those of the images at the start, which are public. Noised class
    counts divide the sums where ``privacy`` sets a mechanism for "class_counts", else its public
    constant."""
    classes = ctx.problem.class_list
    if ctx.protected("class_counts"):
        counts = release_class_counts(records, classes, ctx)
    else:
        counts = None
    real, synthetic = zip(*views)
    centres = [mean_embeddings(images, view) for view in synthetic]
    targets = release_embeddings(real, records, classes, ctx, centres=centres, counts=counts)
    velocity = torch.zeros_like(images)
    for t in timed_steps(range(settings.iterations)):
        k = t % len(targets)
        gradient = matching_gradient(images, targets[k], synthetic[k], chunk=settings.chunk)
        images, velocity = descend_images(images, velocity, gradient, settings)
    return images


def fit_embeddings(
    images: Tensor,
    view: Embed,
    records: Records,
    fitting: FittingSettings,
    ctx: ClientContext,
    *,
    least: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(images of the kept classes (M, ipc, c, h, w), which of the public list are kept (C,) bool).

    One noised read of the records in one public map; the rest is post-processing. A class whose
    noised count is below ``least`` is left out: its target would be noise about the centre, and its
    images mislabelled."""
    classes = ctx.problem.class_list
    if ctx.protected("class_counts"):
        counts = release_class_counts(records, classes, ctx)
    else:
        counts = None
    centre = mean_embeddings(images, view).mean(0)
    (targets,) = release_embeddings([view], records, classes, ctx, centres=[centre], counts=counts)
    if counts is None:
        is_fitted = torch.ones(len(images), dtype=torch.bool)
    else:
        is_fitted = (counts >= least).cpu()
    return fit_to_embeddings(
        images[is_fitted], targets.to(images)[is_fitted], view, fitting
    ), is_fitted


def match_noised_gradients(
    images: Tensor,
    networks: Networks,
    records: Records,
    settings: MatchingSettings,
    streams: MatchingStreams,
    ctx: ClientContext,
    project: Embed | None = None,
) -> Tensor:
    """Images (C, ipc, c, h, w) after steps whose gradients are noised one by one.

    project: where only records are transformed (FedRD, equation 7), what makes of them what the
        networks see; None: records and images are transformed alike.
    """
    shape = tuple(images.shape[2:] if project is None else records.x.shape[1:])
    velocity = torch.zeros_like(images)
    cells = images_by_class(records, ctx.problem.class_list)
    for t, network in zip(
        timed_steps(range(settings.iterations)), iterate_networks(networks, settings.iterations)
    ):
        transform = draw_transform(settings.augment, shape, streams.augment.fold(t).torch())  # type: ignore[arg-type]
        embed = compose_maps(transform, network)
        settings_of_real = dict[str, Any]()
        if project is not None:
            real = compose_maps(compose_maps(transform, project), network)
            embed = network
            settings_of_real = {"real": real, "real_chunk": settings.chunk}
        gradient = release_gradients(
            images,
            embed,
            cells,
            ctx.problem.class_list,
            ctx,
            batch=settings.batch,
            **settings_of_real,
        )
        images, velocity = descend_images(images, velocity, gradient, settings)
    return images


def count_queries(
    mechanisms: Mapping[str, Mechanism], maps: int, iterations: int
) -> dict[str, int]:
    """How often each query is asked for one class in one run of ``maps`` maps and ``iterations``
    steps."""
    counts = {"embedding": maps, "synthetic_gradient": iterations, "class_counts": 1}
    return {name: count for name, count in counts.items() if name in mechanisms}


@dataclass(frozen=True)
class MatchingSteps:
    """All that a matching step needs beside the records; anyone can compute it from the public
    random streams.

    maps: step -> the map of images (transform, then network); project: a record (b, c, h, w) as an
    image of that space; start: N(0, 1) images (m, c, h, w) -> what the images start as. untestable:
    why nothing can be tested on these steps, "" where it can.
    """

    maps: Callable[[int], Embed]
    settings: MatchingSettings
    project: Embed = lambda x: x
    start: Embed = lambda noise: noise
    untestable: str = ""


def step_maps(
    networks: Networks,
    settings: MatchingSettings,
    streams: MatchingStreams,
    shape: RecordShape,
) -> Networks:
    """Step -> map: that step's transform and then its network, as records and images are both
    seen."""

    def map_at_step(step: int) -> Embed:
        transform = draw_transform(settings.augment, shape, streams.augment.fold(step).torch())
        return compose_maps(transform, networks(step))

    return map_at_step

"""DP-SGD on synthetic data: every record's own gradient with respect to the synthetic images, clipped.

For the matching loss ||mean_i h(x_i) - mean_j h(s_j)||**2 of one class the gradient is a mean over
records of g_i = -2 J^T (h(x_i) - mean_j h(s_j)), J the Jacobian of the synthetic mean embedding: each
g_i reads one record, so clipping it bounds what that record does. A reference: it costs a pull-back
per record, where ``noisy_embedding`` costs none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import vjp, vmap

from privdd.core.types import Records
from privdd.distillation.networks import CHUNK, Embed, embedded, record_embeddings
from privdd.federated.channel import ClientContext
from privdd.privacy.batch_invariance import compute_rows

Pull = Callable[[Tensor], tuple[Tensor, ...]]
QUERY = "synthetic_gradient"


def pull_back(images: Tensor, embed: Embed) -> tuple[Tensor, Pull]:
    """Mean embedding (p,) of the synthetic images of one class, and v -> J^T v (the images' shape)."""
    mean, pull = vjp(lambda s: embed(s).mean(0), images.detach())  # type: ignore[misc]
    return mean.detach(), pull


def record_gradients(images: Tensor, embed: Embed, x: Tensor, *, chunk: int | None = None) -> Tensor:
    """Every record's exact gradient g_i: images (m, c, h, w), x (n, c, h, w) -> (n, m, c, h, w).

    The graph holds the synthetic images only; ``chunk`` records are pulled back at a time (default: 1, a
    loop, on a CPU, where it is fastest; 32 elsewhere). The mean over records is the gradient of the
    matching loss.
    """
    chunk = chunk or (1 if images.device.type == "cpu" else 32)
    mean, pull = pull_back(images, embed)
    residuals = -2 * (record_embeddings(embed, x) - mean)
    if chunk == 1:
        parts = [pull(row)[0].detach().unsqueeze(0) for row in residuals]
        return torch.cat(parts) if parts else images.new_zeros(0, *images.shape)
    return compute_rows(lambda _, part: {"": vmap(pull)(part)[0].detach()}, {}, residuals, at_most=chunk)[""]


def mean_gradients(
    images: Tensor, embed: Embed, batches: Sequence[Tensor], real: Embed | None = None, real_chunk: int = CHUNK
) -> Tensor:
    """The gradient of every class's matching loss in one pass: images (C, m, c, h, w), a batch for each.

    real: the map of the records (None: as the images'); so many at a time (0: all, which batch norm in train mode
    needs). A class whose batch is empty has gradient zero.
    """
    leaf = images.detach().requires_grad_(True)
    with torch.enable_grad():
        means = embed(leaf.flatten(0, 1)).unflatten(0, images.shape[:2]).mean(1)
    rows = embedded(real or embed, torch.cat(list(batches)), real_chunk).split([len(x) for x in batches])
    targets = [part.mean(0) if len(part) else own.detach() for part, own in zip(rows, means)]
    (gradient,) = torch.autograd.grad((means - torch.stack(targets)).square().sum(), leaf)
    return gradient


def by_class(records: Records, class_list: Sequence[int]) -> list[Tensor]:
    """The images (n_c, c, h, w) of every class of the list: cut once for many steps, for each cut waits for a GPU."""
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
    """Protected matching gradient of every class's images, through ``ctx.mechanism("synthetic_gradient")``.

    images (C, m, c, h, w) -> (C, m, c, h, w); records: or their images ``by_class``. A mechanism that clips records gets every record's
    gradient of a Poisson sample of the class. One that clips the batch mean, as the papers print it,
    gets that mean, of a fixed number ``batch`` of records drawn anew (None = all of the class), which ``real``
    embeds where it is given (see ``mean_gradients``).
    """
    cells = by_class(records, class_list) if isinstance(records, Records) else records
    if ctx.mechanisms[QUERY].per_record:
        taken = (_marked(x, ctx.sample(QUERY, len(x))) for x in cells)
        rows = (record_gradients(own, embed, x, chunk=chunk) for own, x in zip(images, taken))
    else:
        drawn = [_fixed_batch(x, batch, label, ctx) for x, label in zip(cells, class_list)]
        means = mean_gradients(images, embed, drawn, real, real_chunk)
        rows = (mean.expand(max(len(x), 1), *mean.shape) for mean, x in zip(means, drawn))
    released = [
        ctx.mechanism(QUERY, {"gradient": gradients}, partition=f"label:{label}")["gradient"]
        for label, gradients in zip(class_list, rows)
    ]
    return torch.stack(released).to(images)


def _marked(x: Tensor, sample: Tensor) -> Tensor:
    """The rows of x (n, ...) that a mask of the CPU (n,) marks: a GPU is sent their positions, and not waited for."""
    return x if bool(sample.all()) else x[sample.nonzero()[:, 0].to(x.device)]


def _fixed_batch(x: Tensor, batch: int | None, label: int, ctx: ClientContext) -> Tensor:
    if batch is None or len(x) <= batch:
        return x
    step = len(ctx.outputs)
    order = torch.randperm(len(x), generator=ctx.keys.fold("batch", QUERY, label, step).torch())
    return x[order[:batch].to(x.device)]

"""Noisy clipped mean embeddings: a few noised queries of the records, then any number of matching steps.

Under add/remove one record changes one row (its class) of one release per map, by a vector of norm at
most the clip norm: K full-batch maps over R rounds are sqrt(K R) / z-GDP, and everything computed from
the targets afterwards is post-processing. This needs maps that are public (drawn from public coins or
from earlier protected outputs), that treat each record alone (no batch norm in training mode), and a
release for every class of a public list, present or not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privdd.core.types import Records
from privdd.distillation.distribution_matching import Embed, record_embeddings
from privdd.federated.channel import ClientContext
from privdd.privacy.mechanisms import ClippedSum

QUERY = "embedding"


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
    """Target mean embeddings of every class, one (C, p) tensor a map, through ``ctx.mechanism("embedding")``.

    A map that puts logits behind its features has both clipped together. centres: a public point (p,)
    or one a class (C, p) for each map, which embeddings are measured and clipped from (default 0), for
    instance the mean embedding of the current synthetic images. Without counts the mechanism's
    normaliser, a public constant, divides the sums: target = centre + sum / N, shrunk or stretched for
    classes of another size. counts: public or already protected class sizes (C,), see ``estimation_weights``.
    With a sampling probability below 1 every map sees its own Poisson sample. Raises ValueError for
    centres that do not match the maps.
    """
    if centres is not None and len(centres) != len(maps):
        raise ValueError(f"centres: one for each of {len(maps)} maps is needed, got {len(centres)}")
    targets = []
    for at, embed in enumerate(maps):
        batch = _draw_sample(records, ctx)
        rows = record_embeddings(embed, batch.x, chunk)
        centre = torch.zeros(rows.shape[1:]) if centres is None else centres[at].detach()
        centre = centre.to(rows).expand(len(class_list), rows.shape[1])
        sums = [
            ctx.mechanism(QUERY, {"embedding": rows[batch.y == label] - middle}, partition=f"label:{label}")[
                "embedding"
            ]
            for label, middle in zip(class_list, centre)
        ]
        moves = torch.stack(sums).to(centre)
        if counts is not None:
            moves *= estimation_weights(counts, ctx.mechanisms[QUERY], centre.shape[1], len(maps)).to(centre)  # type: ignore[arg-type]
        targets.append(centre + moves)
    return targets


def estimation_weights(counts: Tensor, mechanism: ClippedSum, width: int, reads: int) -> Tensor:
    """Factors that turn a released sum / N into an estimate of each class's mean move from its centre, (C, 1).

    A noised sum is n m + z C e with |m| about C and e standard normal in ``width`` dimensions; the
    linear estimate of least squared error over ``reads`` such sums is the sum times
    n / (n**2 + z**2 width / reads): nearly 1 / n where the class is large, nearly 0 (the target stays at
    its public centre) where noise drowns it. n is the expected number of sampled records, at least 1.
    """
    expected = (counts.reshape(-1, 1) * mechanism.sampling_probability).clamp_min(1.0)
    drowned = mechanism.noise_multiplier**2 * width / reads
    return mechanism.normaliser * expected / (expected.square() + drowned)


def _draw_sample(records: Records, ctx: ClientContext) -> Records:
    """This map's Poisson sample; all records at probability 1, without a copy."""
    taken = ctx.sample(QUERY, len(records))
    return records if bool(taken.all()) else records.take(taken.to(records.y.device))


def release_class_counts(records: Records, class_list: Sequence[int], ctx: ClientContext) -> Tensor:
    """Noised number of records of each class, (C,) at least 0, through ``ctx.mechanism("class_counts")``.

    One record adds one to one class: set clip_norm 1 and normaliser 1. Classes come from a public list,
    so presence is protected as well. With a sampling probability q below 1 a Poisson sample is counted
    and the noised count divided by q.
    """
    q = float(ctx.mechanisms["class_counts"].sampling_probability)
    y = records.y[ctx.sample("class_counts", len(records)).to(records.y.device)]
    same = y.unsqueeze(1) == torch.tensor(list(class_list), device=y.device)
    return ctx.mechanism("class_counts", {"count": same.float()})["count"].clamp_min(0) / q

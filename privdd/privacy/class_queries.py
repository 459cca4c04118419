"""Protected answers to the small questions: how many records of each class, and what they look like."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privdd.channel import ClientContext
from privdd.core import Records


def class_counts(records: Records, class_list: Sequence[int], ctx: ClientContext) -> Tensor:
    """Noised number of records of each class, (C,) at least 0, through ``ctx.mechanism("class_counts")``.

    One record adds one to one class: set clip_norm 1 and normaliser 1. Classes come from a public list,
    so presence is protected as well.
    """
    same = records.y.unsqueeze(1) == torch.tensor(list(class_list), device=records.y.device)
    return ctx.mechanism("class_counts", {"count": same.float()})["count"].clamp_min(0)


def class_statistics(records: Records, class_list: Sequence[int], ctx: ClientContext) -> tuple[Tensor, Tensor]:
    """Noised channel mean and deviation of each class, two (C, c), through ``ctx.mechanism("class_statistics")``.

    A record contributes its channel means, second moments and a one, all in [0, 1]: its norm is at most
    sqrt(2c + 1), so a clip norm of that size clips nothing. The mean is the noised sum over the noised
    count, held in [0, 1]; a class whose noised count is below 1 is divided by 1.
    """
    ones = torch.ones(len(records), 1, device=records.x.device)
    rows = torch.cat([records.x.mean((2, 3)), records.x.square().mean((2, 3)), ones], 1)
    sums = torch.stack(
        [
            ctx.mechanism("class_statistics", {"sums": rows[records.y == label]}, partition=f"label:{label}")["sums"]
            for label in class_list
        ]
    )
    sums = sums * ctx.mechanisms["class_statistics"].normaliser  # type: ignore[attr-defined]
    channels = records.x.shape[1]
    count = sums[:, -1:].clamp_min(1.0)
    mean = (sums[:, :channels] / count).clamp(0, 1)
    square = (sums[:, channels : 2 * channels] / count).clamp(0, 1)
    return mean, (square - mean.square()).clamp_min(0).sqrt()

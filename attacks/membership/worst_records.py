"""How exposed the most exposed records are (Aerni, Zhang and Tramer 2024): an average over records hides them."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.stats import beta
from torch import Tensor

from attacks.arrays import arrays

SHARE, RATE = 0.01, 0.001  # the worst 1 % of records, at 1 false alarm in 1 000


@arrays
def worst_records(scores: Tensor, masks: Tensor, confidence: float = 0.95) -> dict[str, Any] | None:
    """{"share", "tpr", "ci"}: how often the worst SHARE of records is found when it is in, at a false-positive rate RATE.

    scores (K, n) and masks (K, n) bool, one threshold for all. The worst records are chosen in one half of the
    replays and judged in the other, both ways: chosen and judged on the same, the luckiest would look exposed in a
    null as well. ci: Clopper-Pearson over the replays that judge; it takes them as independent given the records.
    None where fewer than 1 / RATE non-members leave RATE unseen, or there are fewer than 4 replays.
    """
    outside = scores[~masks].sort(descending=True).values
    if len(outside) * RATE < 1 or len(scores) < 4:
        return None
    named = scores > outside[int(RATE * len(outside))]
    count = max(1, math.ceil(SHARE * scores.shape[1]))
    even = torch.arange(len(scores)) % 2 == 0
    hits, trials = 0, 0
    for judged in (even, ~even):
        chosen = _most_exposed(scores[~judged], named[~judged], masks[~judged])[:count]
        inside = masks[judged][:, chosen]
        hits += int((named[judged][:, chosen] & inside).sum())
        trials += int(inside.sum())
    if not trials:
        return None
    return {"share": SHARE, "tpr": hits / trials, "ci": list(_interval(hits, trials, confidence))}


def _most_exposed(scores: Tensor, named: Tensor, masks: Tensor) -> Tensor:
    """Records by falling share of replays that name them while they are in; ties by their mean score when in."""
    inside = masks.sum(0).clamp_min(1)
    rate = (named & masks).sum(0).double() / inside
    mean = scores.double().masked_fill(~masks, 0).sum(0) / inside
    order = mean.argsort(descending=True, stable=True)
    return order[rate[order].argsort(descending=True, stable=True)]


def _interval(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, trials - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high

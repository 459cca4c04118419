"""How exposed the most exposed records are (Aerni, Zhang and Tramer 2024): an average over records hides them.

And how exposed records are that were made hard to fit, against the ordinary ones beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from scipy.stats import beta
from torch import Tensor

from attacks.arrays import arrays
from attacks.roc import roc

SHARE, RATE = 0.01, 0.001  # the worst 1 % of records, at 1 false alarm in 1 000


@arrays
def worst_records(scores: Tensor, masks: Tensor, confidence: float = 0.95) -> dict[str, Any] | None:
    """{"share", "tpr", "ci", "records"}: how often the worst SHARE of records is found when in, at a false-positive rate RATE.

    scores (K, n) and masks (K, n) bool, one threshold for all. The worst records are chosen in one half of the
    replays and judged in the other, both ways: chosen and judged on the same, the luckiest would look exposed in a
    null as well. ci: Clopper-Pearson over the replays that judge; it takes them as independent given the records.
    records: each chosen one by itself, {"record", "hits", "trials", "tpr", "ci", "wrong", "out"}, in order of position, from
    the replays alone that did not choose it: hits of trials that it is in, wrong of out that it is not in; ci is of one
    record, without correction for several.
    None where fewer than 1 / RATE non-members leave RATE unseen, or there are fewer than 4 replays.
    """
    named = _named(scores, masks)
    if named is None or len(scores) < 4:
        return None
    count = max(1, math.ceil(SHARE * scores.shape[1]))
    even = torch.arange(len(scores)) % 2 == 0
    seen: dict[int, tuple[int, ...]] = {}
    for judged in (even, ~even):
        for record in _most_exposed(scores[~judged], named[~judged], masks[~judged])[:count].tolist():
            inside, hit = masks[judged][:, record], named[judged][:, record]
            counts = (hit & inside, inside, hit & ~inside, ~inside)
            before = seen.get(record, (0, 0, 0, 0))
            seen[record] = tuple(n + int(one.sum()) for n, one in zip(before, counts))
    hits, trials, _, _ = (sum(column) for column in zip(*seen.values()))
    if not trials:
        return None
    whole = {"share": SHARE, "tpr": hits / trials, "ci": list(_interval(hits, trials, confidence))}
    return whole | {"records": [_one(at, seen[at], confidence) for at in sorted(seen) if seen[at][1]]}


def _one(record: int, counts: tuple[int, ...], confidence: float) -> dict[str, Any]:
    hits, trials, wrong, out = counts
    known = {"record": record, "hits": hits, "trials": trials, "tpr": hits / trials}
    return known | {"ci": list(_interval(hits, trials, confidence)), "wrong": wrong, "out": out}


@arrays
def by_kind(
    scores: Tensor, masks: Tensor, kinds: Mapping[str, Tensor], confidence: float = 0.95
) -> dict[str, dict[str, Any]] | None:
    """{kind: {"n", "auc", "tpr", "fpr", "ci"}} of records that were made hard to fit, and of the "ordinary" rest.

    scores, masks: (K, n); kinds: name -> positions (m,) of its records. tpr, fpr: of each kind, at the one threshold for all
    records whose false-positive rate is RATE; fpr tells whether that threshold is fair to the kind. ci: of tpr,
    Clopper-Pearson over the members, taken as independent. None where no kind was made, or RATE cannot be seen.
    """
    if not kinds or (named := _named(scores, masks)) is None:
        return None
    rest = torch.ones(scores.shape[1], dtype=torch.bool)
    for at in kinds.values():
        rest[at] = False
    found = {}
    for kind, at in {**kinds, "ordinary": rest.nonzero()[:, 0]}.items():
        inside, hit = masks[:, at], named[:, at]
        members, outsiders = int(inside.sum()), int((~inside).sum())
        if members and outsiders:
            hits, false = int((hit & inside).sum()), int((hit & ~inside).sum())
            rates = {
                "auc": roc(scores[:, at].flatten(), inside.flatten()).auc,
                "tpr": hits / members,
                "fpr": false / outsiders,
            }
            found[kind] = {"n": len(at), **rates, "ci": list(_interval(hits, members, confidence))}
    return found


def _named(scores: Tensor, masks: Tensor) -> Tensor | None:
    """(K, n): which scores lie above the threshold of RATE; None where there are too few non-members to see it."""
    outside = scores[~masks].sort(descending=True).values
    return scores > outside[int(RATE * len(outside))] if len(outside) * RATE >= 1 else None


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

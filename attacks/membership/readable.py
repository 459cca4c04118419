"""Whether numbers can tell members from others at all, before anyone calls an attack no better than guessing."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

SAME_FOR_ALL = "one number for all records of a replay, which names none of them"
SAME_ALWAYS = "the same in every replay, whoever is in"


def nothing_in(values: Tensor) -> str:
    """Why ``values`` (K, n, ...) of K replays and n records say nothing about a record; "" if they may.

    SAME_FOR_ALL: in each replay every record has the same value; SAME_ALWAYS: each record has the same value in all
    of at least two replays. One record alone is compared over replays only.
    """
    if values.shape[1] > 1 and bool((values == values[:, :1]).all()):
        return SAME_FOR_ALL
    if len(values) > 1 and bool((values == values[:1]).all()):
        return SAME_ALWAYS
    return ""


def nothing_in_any(several: Iterable[Tensor]) -> str:
    """The first reason of ``nothing_in`` if it holds of each of ``several``; "" if one of them may say something."""
    reasons = [nothing_in(values) for values in several]
    return reasons[0] if reasons and all(reasons) else ""

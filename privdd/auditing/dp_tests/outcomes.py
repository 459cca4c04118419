"""The outcome of a look at noise or coins: a p-value, and what it says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")
# of one query, compared with each other
MAX_COMPARED_RELEASES = 4096
# of a test's share of the error: a fault of noise or sampling shows far below any usual limit
LEVEL_SHARE = 0.1


class CheckOutcome(NamedTuple):
    """The outcome of one or several tests of one kind: p, corrected for their number, and what it
    says."""

    p: float
    says: str = ""


def p_value_limit(confidence: float) -> float:
    """The p-value below which a run's own noise or sampling is refuted: ``LEVEL_SHARE`` of the
    share of one test, which is at ``confidence`` in (0, 1), by itself: a healthy run is accused ten
    times less often than the share allows."""
    return LEVEL_SHARE * (1 - confidence)


def combine_outcomes(found: Iterable[tuple[float, str]]) -> CheckOutcome:
    """Bonferroni: the smallest p-value times how many there are."""
    made = list(found)
    p, says = min(made, key=lambda one: one[0], default=(1.0, ""))
    return CheckOutcome(min(1.0, float(p) * max(1, len(made))), says)


def select_evenly(names: list[T], most: int) -> list[T]:
    return (
        names
        if len(names) <= most
        else [names[i] for i in np.linspace(0, len(names) - 1, most).astype(int)]
    )

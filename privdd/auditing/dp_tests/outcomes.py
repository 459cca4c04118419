"""The outcome of a look at noise or coins: a p-value, and what it says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")
MAX_COMPARED_RELEASES = 4096  # releases of one query that are compared with each other
# Share of a test's error: a fault of noise or sampling has a p-value far below any usual level.
LEVEL_SHARE = 0.1


class CheckOutcome(NamedTuple):
    """The outcome of one or several tests of one kind.

    Attributes:
        p: the p-value in [0, 1], corrected for the number of tests.
        says: the sentence of a finding, if the p-value refutes.
    """

    p: float
    says: str = ""


def p_value_limit(confidence: float) -> float:
    """The p-value below which a run's own noise or sampling is refuted.

    ``LEVEL_SHARE`` of the error that one test may make: a sound run is accused ten times less often
    than its share of the error allows.

    Args:
        confidence: of one test, in (0, 1).
    """
    return LEVEL_SHARE * (1 - confidence)


def combine_outcomes(outcomes: Iterable[tuple[float, str]]) -> CheckOutcome:
    """The smallest p-value, corrected for their number.

    Bonferroni (Dunn 1961): p = min(1, m min_i p_i) is a p-value of "all m hypotheses hold",
    whatever the dependence. The outcomes here share residuals, so Sidak's or Fisher's correction,
    which need independence, are not valid.

    Args:
        outcomes: pairs (p-value, sentence); none at all give p = 1.
    """
    all_outcomes = list(outcomes)
    p, says = min(all_outcomes, key=lambda outcome: outcome[0], default=(1.0, ""))
    return CheckOutcome(min(1.0, float(p) * max(1, len(all_outcomes))), says)


def select_evenly(items: list[T], most: int) -> list[T]:
    """At most ``most`` of the items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return items
    places = np.linspace(0, len(items) - 1, most).astype(int)
    return [items[place] for place in places]

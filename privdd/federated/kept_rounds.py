"""Which rounds of the audited client are kept, to be replayed after training."""

from __future__ import annotations

from collections.abc import Sequence

KEPT = 8  # rounds of a phase: more cost an audit time, and a checkpoint space


def spread_out(rounds: Sequence[int], most: int) -> list[int]:
    """At most ``most`` (2 or more) of increasing ``rounds``, the first and the last among them.

    Dropped one by one, the one that leaves the smallest gap first: so rounds that arrive one at a time stay spread
    over all of them, without it being known how many will come.
    """
    left = list(rounds)
    while len(left) > most:
        left.pop(min(range(1, len(left) - 1), key=lambda i: left[i + 1] - left[i - 1]))
    return left

"""How many shadow models and how many rounds a number of replays is spent on.

A client without a memory draws each round afresh, so the evidence of its rounds adds up: it grows
with the root of their number. More shadow models only sharpen the fit of a record's own
distribution, which needs 16 or so and gains little above 32. So a run of many rounds has fewer of
them, and more of its rounds are read. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

# 18 times 120 records have about 1,080 non-members; a false-positive rate of .1 % needs 1,000
LEAST_SHADOW_MODELS = 18
MOST_SHADOW_MODELS = 32
# a small budget pays for two rounds before it pays for as many shadow models as are useful
ROUNDS_OF_FEW_REPLAYS = 2


@dataclass(frozen=True)
class ReplaySplit:
    """How replays are shared.

    Attributes:
        shadow_models: Replays of each round, the run itself among them.
        rounds: Rounds of a phase that are replayed, if it has as many.
    """

    shadow_models: int
    rounds: int


def split_replays(replays: int, rounds: int) -> ReplaySplit:
    """Share replays of single rounds among shadow models and rounds.

    Args:
        replays: How many there may be of one phase, at least 2.
        rounds: How many rounds of the longest phase can be replayed, at least 1.

    Returns:
        From 18 to 32 shadow models (of fewer than 36 replays, half as many as these), and all
        rounds that the rest pays for.
    """
    most = min(MOST_SHADOW_MODELS, replays // ROUNDS_OF_FEW_REPLAYS)
    least = min(LEAST_SHADOW_MODELS, most)
    shadow_models = min(most, max(least, replays // rounds))
    return ReplaySplit(shadow_models, replays // shadow_models)

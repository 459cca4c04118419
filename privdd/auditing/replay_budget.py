"""How many shadow models and how many rounds a number of replays is spent on.

A client without a memory draws each round afresh, so the evidence of its rounds adds up: it grows
with the root of their number. More shadow models only sharpen the fit of a record's own
distribution, which gains little above 32. For a run of many rounds, at least 13 to 18 are taken (by
the number of records; 13 is a choice), and more of its rounds are read. A client with a memory
passes all of its rounds for each shadow model, so that their number alone is what it costs. Imports
no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# 18 times 120 records have about 1,080 non-members; a false-positive rate of .1 % needs 1,000
NON_MEMBERS = 1080
LEAST_OF_FEW_RECORDS = 18  # of at most 120 records
# of many records: of the 12 other models six hold a record on average, and six do not
LEAST_OF_MANY_RECORDS = 13
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


def least_shadow_models(records: int) -> int:
    """The fewest shadow models for so many audited records, from 13 to 18.

    They are as many as a false-positive rate of .1 % needs, within what the fit of a record's own
    distribution takes.
    """
    # K models of n records have K n / 2 non-members on average:   K n / 2 >= 1,080
    needed = math.ceil(2 * NON_MEMBERS / max(records, 1))
    return min(LEAST_OF_FEW_RECORDS, max(LEAST_OF_MANY_RECORDS, needed))


def split_replays(replays: int, rounds: int, records: int) -> ReplaySplit:
    """Share replays of single rounds among shadow models and rounds.

    Args:
        replays: How many there may be of one phase, at least 2.
        rounds: How many rounds of the longest phase can be replayed, at least 1.
        records: How many records are audited.

    Returns:
        From ``least_shadow_models`` to 32 shadow models (of few replays, half as many as these),
        and all rounds that the rest pays for.
    """
    most = min(MOST_SHADOW_MODELS, replays // ROUNDS_OF_FEW_REPLAYS)
    least = min(least_shadow_models(records), most)
    shadow_models = min(most, max(least, replays // rounds))
    return ReplaySplit(shadow_models, replays // shadow_models)

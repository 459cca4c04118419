"""The membership game on a target that someone else trained: fair coins that its owner knew nothing of.

For each audited record a fair coin is tossed first. On heads it is the next record of a random order of the training
set, on tails the next of the held-out set. If both sets were drawn from one distribution, this is the game of a training
in which each audited record was put in by that coin, its place being taken by another record of the same distribution
otherwise; so bounds hold for one record *exchanged* (Steinke, Nasr and Jagielski 2023; relation replace).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privdd.auditing.targets.labelled import Labelled
from privdd.core.errors import BadConfig
from privdd.core.keys import Keys

SIGMAS = 5.2  # an order of coins that would use up one set is as rare as one in five million, and is tossed again
MOST_REFERENCE = 1000


@dataclass(frozen=True)
class CoinGame:
    """records: the n audited ones; masks (K, n) bool, row 0 the target's; row (n,): where each stands in its own file.

    rest: training records that are not audited, in every shadow model too; reference: held-out ones that the attacker
    knows, and that no model of the game was trained on.
    """

    records: Labelled
    masks: Tensor
    row: Tensor
    rest: Labelled
    reference: Labelled

    @property
    def member(self) -> Tensor:
        return self.masks[0]

    def shadow_set(self, world: int) -> Labelled:
        """What shadow model ``world`` is trained on, at least 1."""
        picked = self.masks[world]
        x = torch.cat([self.rest.x, self.records.x[picked]])
        return Labelled(x, torch.cat([self.rest.y, self.records.y[picked]]), self.rest.kind)


def audited_count(members: int, others: int, most: int) -> int:
    """The most records n, up to ``most``, for which n fair coins use up neither set but with a chance of 2e-7."""
    least = min(members, others)
    root = -SIGMAS / 2 + math.sqrt(SIGMAS**2 / 4 + 2 * least)  # least = n / 2 + SIGMAS sqrt(n) / 2
    return min(most, int(root * root))


def coin_game(train: Labelled, heldout: Labelled, records: int, shadows: int, keys: Keys) -> CoinGame:
    """The game with ``shadows`` worlds beside the target. Raises BadConfig where the sets are too small."""
    reference = min(MOST_REFERENCE, len(heldout) // 3)
    aside, left = torch.randperm(len(heldout), generator=keys.fold("held-out").torch()).split(
        [reference, len(heldout) - reference]
    )
    count = audited_count(len(train), len(left), records)
    if count < 8:
        raise BadConfig(
            f"target.train, target.heldout: {len(train)} and {len(heldout)} records leave {count} to audit; "
            "at least 8 are needed, better 1000"
        )
    order = torch.randperm(len(train), generator=keys.fold("train").torch())
    member = _coins(count, min(len(order), len(left)), keys.fold("coins", "target").torch())
    inside, outside = order[: int(member.sum())], left[: int((~member).sum())]
    row = torch.empty(count, dtype=torch.long)
    row[member], row[~member] = inside, outside
    x = torch.empty(count, *train.shape, dtype=train.x.dtype)
    x[member], x[~member] = train.x[inside], heldout.x[outside].to(train.x.dtype)
    y = torch.empty(count, dtype=torch.long)
    y[member], y[~member] = train.y[inside], heldout.y[outside]
    others = [_coins(count, count, keys.fold("coins", k).torch()) for k in range(shadows)]
    masks = torch.stack([member, *others])
    rest = train.at(order[len(inside) :])
    return CoinGame(Labelled(x, y, train.kind), masks, row, rest, heldout.at(aside))


def _coins(count: int, most: int, generator: torch.Generator) -> Tensor:
    """``count`` fair coins (n,) bool with at most ``most`` of either side."""
    while True:
        found = torch.rand(count, generator=generator) < 0.5
        if max(int(found.sum()), count - int(found.sum())) <= most:
            return found

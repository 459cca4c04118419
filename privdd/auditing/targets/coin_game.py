"""The membership game on a target that someone else trained: fair coins that its owner knew nothing of.

For each audited record a fair coin is tossed first. On heads it is the next record of a random order of the training
set, on tails the next of the held-out set. If both sets were drawn from one distribution, this is the game of a training
in which each audited record was put in by that coin, its place being taken by another record of the same distribution
otherwise; so bounds hold for one record *exchanged* (Steinke, Nasr and Jagielski 2023; relation replace).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from privdd.auditing.targets.labelled import Labelled
from privdd.core.errors import BadConfig
from privdd.core.keys import Keys

SIGMAS = 5.2  # an order of coins that would use up one set is as rare as one in five million, and is tossed again
MOST_REFERENCE = 1000


@dataclass(frozen=True)
class Repeats:
    """Equal records of the two files. inside, outside: places of the training and held-out records that may be audited.

    training, heldout: how many records equal an earlier one of their file; shared: held-out records that equal a training
    record, which none may be audited. single: whether every record that may be audited is the only one of its kind; else
    each stands for all its copies, and a bound would be for these together.
    """

    inside: Tensor
    outside: Tensor
    training: int
    heldout: int
    shared: int
    single: bool


def repeats_of(train: Labelled, heldout: Labelled) -> Repeats:
    """Records that are the only ones of their kind in both files are audited, as long as they are half of all kinds.

    Which file such a record lies in is as much chance as before, so the game is fair. Else one of each kind is audited.
    """
    kind = _kinds(train.x, heldout.x)
    own, other = kind.split([len(train), len(heldout)])
    count, apart = (torch.bincount(one, minlength=len(kind)) for one in (own, other))
    alone, apart_alone = (count[own] == 1) & (apart[own] == 0), (apart[other] == 1) & (count[other] == 0)
    first, first_apart = _first(own) & (apart[own] == 0), _first(other) & (count[other] == 0)
    single = 2 * int(alone.sum()) >= int(_first(own).sum())
    inside, outside = (alone, apart_alone) if single else (first, first_apart)
    return Repeats(
        torch.nonzero(inside).flatten(), torch.nonzero(outside).flatten(), len(own) - int(_first(own).sum()),
        len(other) - int(_first(other).sum()), int((count[other] > 0).sum()), single,
    )  # fmt: skip


def _kinds(*sets: Tensor) -> Tensor:
    """(n,): the same number for records that are equal, number by number; what single precision cannot tell apart is equal,
    unless all sets are of higher precision."""
    exact = torch.promote_types(sets[0].dtype, sets[-1].dtype)
    if exact == torch.float64 and any(one.dtype != exact for one in sets):
        exact = torch.float32
    whole = torch.cat([one.flatten(1).to(exact) for one in sets]) + 0  # minus zero is zero
    rows = np.ascontiguousarray(
        torch.nan_to_num(whole, nan=math.pi * 1e30).numpy() if whole.is_floating_point() else whole.numpy()
    )
    place: dict[bytes, int] = {}
    return torch.tensor([place.setdefault(sha256(row).digest(), len(place)) for row in rows])


def _first(kind: Tensor) -> Tensor:
    """(n,) bool: whether no earlier record is of the same kind."""
    seen = torch.full((int(kind.max()) + 1,), len(kind)).scatter_reduce(0, kind, torch.arange(len(kind)), "amin")
    return seen[kind] == torch.arange(len(kind))


@dataclass(frozen=True)
class CoinGame:
    """records: the n audited ones; masks (K, n) bool, row 0 the target's; row (n,): where each stands in its own file.

    rest: training records that are not audited, in every shadow model too; reference: held-out ones that the attacker
    knows, and that no model of the game was trained on. repeats: of the two files.
    """

    records: Labelled
    masks: Tensor
    row: Tensor
    rest: Labelled
    reference: Labelled
    repeats: Repeats

    @property
    def member(self) -> Tensor:
        return self.masks[0]

    def shadow_set(self, world: int) -> Labelled:
        """What shadow model ``world`` is trained on, at least 1."""
        picked = self.masks[world]
        x = torch.cat([self.rest.x, self.records.x[picked]])
        return Labelled(x, torch.cat([self.rest.y, self.records.y[picked]]), self.rest.form, self.rest.names)


def audited_count(members: int, others: int, most: int) -> int:
    """The most records n, up to ``most``, for which n fair coins use up neither set but with a chance of 2e-7."""
    least = min(members, others)
    root = -SIGMAS / 2 + math.sqrt(SIGMAS**2 / 4 + 2 * least)  # least = n / 2 + SIGMAS sqrt(n) / 2
    return min(most, int(root * root))


def coin_game(train: Labelled, heldout: Labelled, records: int, shadows: int, keys: Keys) -> CoinGame:
    """The game with ``shadows`` worlds beside the target. Raises BadConfig where the sets are too small."""
    repeats = repeats_of(train, heldout)
    others = repeats.outside
    reference = min(MOST_REFERENCE, len(others) // 3)
    aside, left = others[torch.randperm(len(others), generator=keys.fold("held-out").torch())].split(
        [reference, len(others) - reference]
    )
    count = audited_count(len(repeats.inside), len(left), records)
    if repeats.shared == len(heldout):
        raise BadConfig(
            f"target.heldout: each of its {len(heldout)} records is in target.train too; records that were not used are needed"
        )
    if count < 8:
        same = f" (of which {repeats.shared} equal a training record)" if repeats.shared else ""
        raise BadConfig(
            f"target.train, target.heldout: {len(train)} and {len(heldout)} records{same} leave {count} to audit; "
            "at least 8 are needed, better 1000"
        )
    order = repeats.inside[torch.randperm(len(repeats.inside), generator=keys.fold("train").torch())]
    member = _coins(count, min(len(order), len(left)), keys.fold("coins", "target").torch())
    inside, outside = order[: int(member.sum())], left[: int((~member).sum())]
    row = torch.empty(count, dtype=torch.long)
    row[member], row[~member] = inside, outside
    x = torch.empty(count, *train.shape, dtype=train.x.dtype)
    x[member], x[~member] = train.x[inside], heldout.x[outside].to(train.x.dtype)
    y = torch.empty(count, dtype=torch.long)
    y[member], y[~member] = train.y[inside], heldout.y[outside]
    tossed = [_coins(count, count, keys.fold("coins", k).torch()) for k in range(shadows)]
    masks = torch.stack([member, *tossed])
    rest = train.at(_rest(train, order, inside))
    return CoinGame(Labelled(x, y, train.form, train.names), masks, row, rest, heldout.at(aside), repeats)


def _rest(train: Labelled, order: Tensor, audited: Tensor) -> Tensor:
    """Places of the training records that are no copy of an audited one: the other candidates first, as they were drawn."""
    kind = _kinds(train.x)
    free = ~torch.isin(kind, kind[audited])
    others = torch.ones(len(train), dtype=torch.bool)
    others[order] = False
    return torch.cat([order[len(audited) :], torch.nonzero(free & others).flatten()])


def _coins(count: int, most: int, generator: torch.Generator) -> Tensor:
    """``count`` fair coins (n,) bool with at most ``most`` of either side."""
    while True:
        found = torch.rand(count, generator=generator) < 0.5
        if max(int(found.sum()), count - int(found.sum())) <= most:
            return found

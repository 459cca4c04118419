"""The membership game: the audited records, and a fair coin flip per record for every replay of the client.

A replay of the audited client is called a world; each world yields one shadow model. World 0 is the real run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privdd.core.keys import Keys
from privdd.core.types import Records, Shard


@dataclass(frozen=True)
class Game:
    """The audited records of one client, and which of them are in each world.

    audited: (n,) positions in the client's whole training set; masks: (K, n) bool, True = in, row 0 is the real
    run; whole: the client's training records before any coin flip; relation: what "out" means: the record is
    removed (add_remove, replace), or zeroed out with its label kept (zero_out).
    """

    whole: Records
    audited: Tensor
    masks: Tensor
    relation: str = "add_remove"

    @property
    def candidates(self) -> Records:
        return self.whole.take(self.audited)

    def kept(self, world: int) -> Tensor:
        """(size of whole,) bool: what the client trains on in a world; the order of records stays."""
        keep = torch.ones(len(self.whole), dtype=torch.bool)
        keep[self.audited] = self.masks[world]
        return keep

    def shard(self, shard: Shard, world: int) -> Shard:
        """The client's data in one world; records that are out join its held-out ones."""
        keep = self.kept(world)
        gone = self.whole.take(~keep)
        nulls = replace(gone, x=torch.zeros_like(gone.x)) if self.relation == "zero_out" else None
        return replace(shard, train=self.whole.take(keep), heldout=Records.concat([shard.heldout, gone]), nulls=nulls)


def draw_game(shard: Shard, records: int, worlds: int, keys: Keys, relation: str = "add_remove") -> Game:
    """Draw the audited ``records`` (at most three quarters of the client's) and their coin flips in K worlds.

    The coin flips are secret, independent and fair. At least one record is never audited, so that the client
    never trains on nothing.
    """
    size = len(shard.train)
    if size < 4:
        raise ValueError(f"audit.client={shard.client}: it holds {size} records, too few to audit (4 are needed)")
    count = min(records, max(1, 3 * size // 4))
    audited = torch.randperm(size, generator=keys.fold("audited").torch())[:count].sort().values
    generator = keys.fold("secret", "coins").torch()
    masks = torch.rand(worlds, count, generator=generator) < 0.5
    return Game(shard.train, audited, masks, relation)

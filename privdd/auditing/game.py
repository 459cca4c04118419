"""The membership game: which records of the audited client are audited, and the coin flips of every shadow run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privdd.core.keys import Keys
from privdd.core.types import Records, Shard


@dataclass(frozen=True)
class Game:
    """Which records of the audited client are audited, and every world's coins.

    audited: (n,) positions in the client's whole training set; masks: (K, n) bool, row 0 real;
    whole: the client's training records before any coin was thrown; relation: what "out" means, the
    record gone (add_remove, replace) or zeroed out with its label kept.
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
        """The client in one world; records that are out join its held-out ones."""
        keep = self.kept(world)
        gone = self.whole.take(~keep)
        nulls = replace(gone, x=torch.zeros_like(gone.x)) if self.relation == "zero_out" else None
        return replace(shard, train=self.whole.take(keep), heldout=Records.concat([shard.heldout, gone]), nulls=nulls)


def draw_game(shard: Shard, records: int, worlds: int, keys: Keys, relation: str = "add_remove") -> Game:
    """Audit ``records`` of the client's training records (all but a quarter at most) in K worlds.

    The coins are secret, independent and fair. A world in which a client would be left with no
    record keeps one that is not audited: at least one record is never audited.
    """
    size = len(shard.train)
    if size < 4:
        raise ValueError(f"audit.client={shard.client}: it holds {size} records, too few to audit (4 are needed)")
    count = min(records, max(1, 3 * size // 4))
    audited = torch.randperm(size, generator=keys.fold("audited").torch())[:count].sort().values
    generator = keys.fold("secret", "coins").torch()
    masks = torch.rand(worlds, count, generator=generator) < 0.5
    return Game(shard.train, audited, masks, relation)

"""The membership game: the audited records, and a fair coin flip per record for every replay of the client.

A replay of the audited client is called a world; each world yields one shadow model. World 0 is the real run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from privdd.core.hard_counts import Tail
from privdd.core.keys import Keys
from privdd.core.types import Records, Shard
from privdd.data.tail import drawn_records, kinds_of


@dataclass(frozen=True)
class Game:
    """The audited records of one client, and which of them are in each world.

    audited: (n,) positions in the client's whole training set; masks: (K, n) bool, True = in, row 0 is the real
    run; whole: the client's training records before any coin flip; relation: what "out" means: the record is
    removed (add_remove, replace), or zeroed out with its label kept (zero_out). kinds: places among the audited records of
    those that were made hard to fit, by what was done to them.
    """

    whole: Records
    audited: Tensor
    masks: Tensor
    relation: str = "add_remove"
    kinds: Mapping[str, Tensor] = field(default_factory=dict)

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


def draw_game(
    shard: Shard, records: int, worlds: int, keys: Keys, relation: str = "add_remove", tail: Tail | None = None
) -> Game:
    """Draw the audited ``records`` (at most three quarters of the client's) and their coin flips in K worlds.

    The coin flips are secret, independent and fair. At least one record is never audited, so that the client never
    trains on nothing. tail: what ``with_tail`` did to the shard, with the same keys.
    """
    size = len(shard.train)
    if size < 4:
        raise ValueError(f"audit.client={shard.client}: it holds {size} records, too few to audit (4 are needed)")
    drawn = drawn_records(size, records, keys)
    audited = drawn.sort().values
    kinds = {
        kind: torch.searchsorted(audited, at).sort().values for kind, at in kinds_of(tail or Tail(), drawn).items()
    }
    generator = keys.fold("secret", "coins").torch()
    masks = torch.rand(worlds, len(audited), generator=generator) < 0.5
    return Game(shard.train, audited, masks, relation, kinds)

"""Worlds: replays of the audited client in which each audited record is in or out by a fair coin.

World 0 is the run that really happened: its coins were drawn before training. Against the server
only the audited client's own steps depend on the coins, because the server knows what it broadcast;
so a world costs that client's steps from its first remembered round, not a federation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privdd.core import Keys, Records, Shard, State, Tensors, Upload
from privdd.federation import Plan, Snapshot, remembers
from privdd.methods.fedavg import Turn
from privdd.methods.together import local_together, turns_of


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


def world_plan(plan: Plan, world: int) -> Plan:
    """The plan with a world's own streams."""
    return replace(plan, keys=plan.keys.fold("world", world))


def memory_after(plan: Plan, snapshot: Snapshot, memory: State, shard: Shard) -> State:
    """What the audited client keeps after a round that it began with ``memory``.

    A method whose ``recall`` gives just this is spared the work on an upload that nobody reads.
    """
    ctx = plan.context(snapshot.round, plan.victim)
    recall = getattr(plan.method, "recall", None)
    if recall is not None:
        kept: State = recall(snapshot.broadcast, memory, shard, ctx)
        return kept
    return plan.method.local(snapshot.broadcast, memory, shard, ctx)[1]


@dataclass(frozen=True)
class Replay:
    """One world of one audited round, self-contained so that any worker can run it."""

    plan: Plan
    chain: tuple[Snapshot, ...]  # the client's rounds from the first that matters to the audited one
    shard: Shard
    world: int

    def run(self) -> Mapping[str, Tensors]:
        """What the client would have sent in the last round of the chain."""
        plan = world_plan(self.plan, self.world)
        memory: State = {}
        for snapshot in self.chain[:-1]:
            memory = memory_after(plan, snapshot, memory, self.shard)
        last = self.chain[-1]
        ctx = plan.context(last.round, plan.victim)
        upload, _ = plan.method.local(last.broadcast, memory, self.shard, ctx)
        received, _ = plan.channel.send(upload, ctx, len(self.shard.train))
        return received.values


def replay_together(
    plan: Plan, chain: Sequence[Snapshot], shard: Shard, game: Game, worlds: Sequence[int]
) -> list[Mapping[str, Tensors]]:
    """What ``Replay`` gives for each of these worlds, up to rounding, from the training of one wide network.

    Raises ValueError where the method has no such form.
    """
    plans, shards = [world_plan(plan, w) for w in worlds], [game.shard(shard, w) for w in worlds]
    done: list[tuple[Upload, State]] = [({}, {}) for _ in worlds]
    for snapshot in chain:
        contexts = [own.context(snapshot.round, plan.victim) for own in plans]
        found = local_together(plan.method, snapshot.broadcast, [memory for _, memory in done], shards, contexts)
        if found is None:
            raise ValueError(f"{type(plan.method).__name__}: round {snapshot.round} has no vectorised form")
        done = found
    sent = [plan.channel.send(upload, ctx, len(own.train))[0] for (upload, _), ctx, own in zip(done, contexts, shards)]
    return [received.values for received in sent]


def turns_in(
    plan: Plan, chain: Sequence[Snapshot], shard: Shard, game: Game, worlds: Sequence[int]
) -> list[Turn] | None:
    """These worlds' turns of the chain's last round, without what they remember; None without a vectorised form."""
    shards, last = [game.shard(shard, w) for w in worlds], chain[-1]
    contexts = [world_plan(plan, w).context(last.round, plan.victim) for w in worlds]
    if not worlds or any(
        turns_of(plan.method, s.broadcast, [{} for _ in worlds], shards, contexts) is None for s in chain
    ):
        return None
    return turns_of(plan.method, last.broadcast, [{} for _ in worlds], shards, contexts)


def chain_to(plan: Plan, snapshots: Mapping[int, Snapshot], round: int) -> tuple[Snapshot, ...]:
    """The rounds that a replay of ``round`` must pass through: only itself where nothing is remembered."""
    target = snapshots[round]
    if not remembers(plan.method, round, target.memory):
        return (target,)
    return tuple(snapshots[t] for t in sorted(snapshots) if t <= round)


def chunks(worlds: int, size: int) -> list[range]:
    """Worlds 1 to ``worlds`` - 1 in groups: world w is in group w // size, whichever are already there.

    World 0 happened; the others of a group are computed together, and always all of them, so that what
    they share (a pass's batches, the order of a sum) does not depend on where an audit was stopped.
    """
    groups = [range(max(1, at), min(at + size, worlds)) for at in range(0, worlds, size)]
    return [group for group in groups if len(group)]


def fast_worlds(
    plan: Plan, snapshot: Snapshot, shard: Shard, game: Game, worlds: Sequence[int]
) -> list[Mapping[str, Tensors]] | None:
    """All worlds in one pass where the method knows how (distribution matching), else None.

    They share the first one's batches (each real record is embedded once); where images start is
    each world's own.
    """
    local_worlds = getattr(plan.method, "local_worlds", None)
    if local_worlds is None or not worlds:
        return None
    contexts = [world_plan(plan, world).context(snapshot.round, plan.victim) for world in worlds]
    fixed = torch.ones(len(game.whole), dtype=torch.bool)
    fixed[game.audited] = False
    base = shard.with_train(game.whole.take(fixed))
    masks = game.masks[list(worlds)]
    own = [ctx.keys for ctx in contexts]
    uploads = local_worlds(snapshot.broadcast, snapshot.memory, base, game.candidates, masks, contexts[0], own)
    if uploads is None:
        return None
    return [plan.channel.send(upload, ctx, 0)[0].values for ctx, upload in zip(contexts, uploads)]


def content_key(plan: Plan, chain: Sequence[Snapshot], game: Game, config: str) -> str:
    """The folder name of cached worlds: same config, broadcasts and audited records, same worlds."""
    from privdd.channel import digest

    h = hashlib.blake2b(config.encode(), digest_size=8)
    h.update(str(plan.keys.seed).encode() + digest({"ids": game.whole.ids, "audited": game.audited}).encode())
    for snapshot in chain:
        h.update(f"{snapshot.round}".encode())
        for name in sorted(snapshot.broadcast):
            h.update(digest(snapshot.broadcast[name]).encode())
    return h.hexdigest()

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

from privdd.auditing.game import Game
from privdd.core.state import marked
from privdd.core.types import Shard, State, Tensors, Upload
from privdd.federated.simulation import Plan, Progress, Snapshot, remembers
from privdd.methods.batched import local_together, turns_of
from privdd.methods.fedavg import Turn


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
    from privdd.federated.channel import digest

    h = hashlib.blake2b(config.encode(), digest_size=8)
    h.update(str(plan.keys.seed).encode() + digest({"ids": game.whole.ids, "audited": game.audited}).encode())
    for snapshot in chain:
        h.update(f"{snapshot.round}".encode())
        for name in sorted(snapshot.broadcast):
            h.update(digest(snapshot.broadcast[name]).encode())
    return h.hexdigest()


def recalled(plan: Plan, progress: Progress, shard: Shard) -> Progress:
    """``progress`` with the audited client's memory before each of its kept rounds and after the last.

    shard: what the client trained on. Unchanged where nothing is marked. A method whose clients remember
    has all of the client's rounds kept, from the first. Raises ValueError where local work drew noise of the
    operating system: another draw of it gives another memory.
    """
    if not marked(progress.memories.get(plan.victim, {})):
        return progress
    drawn = sorted(set(plan.mechanisms) & set(plan.method.queries))  # others act on what is sent, after local work
    if drawn and plan.noise_source == "os":
        raise ValueError(
            f"privacy.noise_source=os: what client {plan.victim} remembers depends on noise of {', '.join(drawn)} that "
            "cannot be drawn again; allowed is seed where a deployment with client memory is audited"
        )
    memory: State = {}
    snapshots = dict(progress.snapshots)
    for t in sorted(snapshots):
        snapshots[t] = replace(snapshots[t], memory=memory)
        memory = {name: value.detach() for name, value in memory_after(plan, snapshots[t], memory, shard).items()}
    return replace(progress, snapshots=snapshots, memories={**progress.memories, plan.victim: memory})

"""Worlds: replays of the audited client, each the source of one shadow model.

In each world every audited record is in or out by a fair coin flip. World 0 is the run that really happened: its
coins were flipped before training. Against the server only the audited client's own steps depend on the coins,
because the server knows what it broadcast. So a world costs that client's steps from its first remembered round,
not the training of a whole federation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from privdd.auditing.game import Game
from privdd.auditing.seen_sums import Uploads, replaying, seen
from privdd.core.state import marked
from privdd.core.types import Shard, State, Tensors, Upload
from privdd.federated.channel import ClientContext, digest
from privdd.federated.simulation import Plan, Progress, Snapshot


def world_plan(plan: Plan, world: int) -> Plan:
    """The plan with a world's own random streams."""
    return replace(plan, keys=plan.keys.fold("world", world))


def memory_after(plan: Plan, snapshot: Snapshot, memory: State, shard: Shard) -> State:
    """What the audited client keeps after a round that it began with ``memory``.

    A method that defines ``recall`` gets by without computing an upload that nobody reads.
    """
    return plan.method.recall(snapshot.broadcast, memory, shard, plan.context(snapshot.round, plan.victim))


Done = dict[int, tuple[Upload, ClientContext]]  # round -> what the client made of it
Sent = dict[int, Mapping[str, Tensors]]  # round -> what the client would have sent


@dataclass(frozen=True)
class Replay:
    """Some worlds of one audited round, self-contained so that any worker can run them.

    chain: the client's rounds, from the first that the audited one depends on to the audited one; shard: the
    client's data before any coin flip; batched: all worlds at once by the method's ``local_batched``, else one
    by one; passing: earlier rounds of the chain whose uploads are wanted too; others: round -> what the other clients
    add, where the server sees sums.
    """

    plan: Plan
    chain: tuple[Snapshot, ...]
    shard: Shard
    game: Game
    worlds: Sequence[int]
    batched: bool = False
    passing: frozenset[int] = frozenset()
    others: Mapping[int, Uploads] = field(default_factory=dict)

    def run(self) -> list[Mapping[str, Tensors]] | None:
        """What the client would have sent in the last round of the chain, by world.

        None if ``batched`` is set and the method has no batched form of one of the rounds.
        """
        found = self.by_round()
        return None if found is None else [sent[self.chain[-1].round] for sent in found]

    def by_round(self) -> list[Sent] | None:
        """The same for the last round and those of ``passing``, each world's by round."""
        plans = [world_plan(self.plan, world) for world in self.worlds]
        shards = [self.game.shard(self.shard, world) for world in self.worlds]
        done = self._batched(plans, shards) if self.batched else [self._one(p, s) for p, s in zip(plans, shards)]
        if done is None:
            return None
        # the same context as the local work: noise on what is sent comes next in its stream
        send = self.plan.channel.send
        view = lambda t, sent: seen(self.plan, t, sent, self.others.get(t, {}))  # noqa: E731
        return [{t: view(t, send(upload, ctx)[0].values) for t, (upload, ctx) in rounds.items()} for rounds in done]

    def _wanted(self, snapshot: Snapshot) -> bool:
        return snapshot.round == self.chain[-1].round or snapshot.round in self.passing

    def _one(self, plan: Plan, shard: Shard) -> Done:
        memory: State = {}
        done: Done = {}
        for snapshot in self.chain:
            if not self._wanted(snapshot):
                memory = memory_after(plan, snapshot, memory, shard)
                continue
            ctx = replaying(plan, snapshot.round)
            upload, memory = plan.method.local(snapshot.broadcast, memory, shard, ctx)
            done[snapshot.round] = (upload, ctx)
        return done

    def _batched(self, plans: Sequence[Plan], shards: Sequence[Shard]) -> list[Done] | None:
        made: list[Done] = [{} for _ in plans]
        memories: list[State] = [{} for _ in plans]
        for snapshot in self.chain:
            contexts = [replaying(plan, snapshot.round) for plan in plans]
            found = self.plan.method.local_batched(snapshot.broadcast, memories, shards, contexts)
            if found is None:
                return None
            memories = [memory for _, memory in found]
            if self._wanted(snapshot):
                for done, (upload, _), ctx in zip(made, found, contexts):
                    done[snapshot.round] = (upload, ctx)
        return made


def chain_to(plan: Plan, snapshots: Mapping[int, Snapshot], round: int) -> tuple[Snapshot, ...]:
    """The rounds that a replay of ``round`` must run: only that round if the client remembers nothing."""
    target = snapshots[round]
    if not plan.method.remembers(round, target.memory):
        return (target,)
    return tuple(snapshots[t] for t in sorted(snapshots) if t <= round)


def chunks(worlds: int, size: int) -> list[range]:
    """Worlds 1 to ``worlds`` - 1 in groups: world w is in group w // size, whether or not it is cached already.

    World 0 is the real run. A group is always computed as a whole, so that what its worlds share (the batches of
    a pass, the order of a sum) does not depend on where an earlier audit was stopped.
    """
    groups = [range(max(1, at), min(at + size, worlds)) for at in range(0, worlds, size)]
    return [group for group in groups if len(group)]


def content_key(plan: Plan, chain: Sequence[Snapshot], game: Game, config: str) -> str:
    """The folder name of cached worlds: the same for the same config, broadcasts and audited records."""
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
    operating system, or of the client's own secret: another draw of it gives another memory.
    """
    if not marked(progress.memories.get(plan.victim, {})):
        return progress
    drawn = sorted(set(plan.mechanisms) & set(plan.method.queries))  # others act on what is sent, after local work
    if drawn and plan.noise_source != "seed":
        raise ValueError(
            f"privacy.noise_source={plan.noise_source}: what client {plan.victim} remembers depends on noise of {', '.join(drawn)} that "
            "cannot be drawn again; allowed is seed where a deployment with client memory is audited"
        )
    memory: State = {}
    snapshots = dict(progress.snapshots)
    for t in sorted(snapshots):
        snapshots[t] = replace(snapshots[t], memory=memory)
        memory = {name: value.detach() for name, value in memory_after(plan, snapshots[t], memory, shard).items()}
    return replace(progress, snapshots=snapshots, memories={**progress.memories, plan.victim: memory})

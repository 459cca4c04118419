"""Replays of the audited client, each the source of one shadow model: the membership game, its
replays, and recovered noise logs.

In each replay (a "world" in code and settings) every audited record is in or out by a fair coin
flip; world 0 is the run that really happened. Against the server only the audited client's own
steps depend on the coins, because the server knows what it broadcast, so a replay costs that
client's steps from its first remembered round, not a whole federation."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from privdd.auditing.client_hooks import method_of_client
from privdd.auditing.replay_budget import split_replays
from privdd.core.hard_examples import HardExamples
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard, State, Tensors, Upload, is_remote_memory
from privdd.data.partition import draw_audited_positions, positions_by_kind
from privdd.federated.channel import ClientContext, digest_tensors
from privdd.federated.noise_log import NoiseLog, ObservedRound
from privdd.federated.settings import AuditSettings
from privdd.federated.simulation import (
    LEAST_KEPT_ROUNDS,
    Plan,
    Progress,
    Snapshot,
    kept_round_limit,
    run_round,
    start_training,
)
from privdd.privacy.ledger import SERVER, Ledger
from privdd.privacy.noise import CustomNoise, Noise
from privdd.runtime.progress import show_progress

BYTES_PER_NUMBER = 4
SUM_GRANTED = "the adversary sees the sum over clients, and knows the other clients' part of it"
SUM_NOT_GRANTED = (
    "the adversary sees the sum over clients, and treats it as the audited client's upload"
)
SIGNALS_VERSION = b"3"  # of how signals are read: replays that another version read are read anew


@dataclass(frozen=True)
class MembershipGame:
    """The audited records of one client, and which of them are in each world.

    audited: (n,) positions in ``whole``, the client's training records before any coin flip; masks:
        (K, n) bool, True = in, row 0 is the real run; relation: what "out" means: removed
        (add_remove, replace), or zeroed out with the label kept
    (zero_out); kinds: places among the audited records of those that were made hard to fit, by what
    was done to them."""

    whole: Records
    audited: Tensor
    masks: Tensor
    relation: str = "add_remove"
    kinds: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def audited_records(self) -> Records:
        return self.whole.take(self.audited)

    def shard_of_replay(self, shard: Shard, world: int) -> Shard:
        """The client's data in one replay; records that are out join its held-out ones."""
        keep = torch.ones(len(self.whole), dtype=torch.bool)
        keep[self.audited] = self.masks[world]
        gone = self.whole.take(~keep)
        if self.relation == "zero_out":
            nulls = replace(gone, x=torch.zeros_like(gone.x))
        else:
            nulls = None
        return replace(
            shard,
            train=self.whole.take(keep),
            heldout=Records.concat([shard.heldout, gone]),
            nulls=nulls,
        )


def draw_membership_game(
    shard: Shard,
    records: int,
    worlds: int,
    keys: Keys,
    relation: str = "add_remove",
    tail: HardExamples | None = None,
) -> MembershipGame:
    """Draw the audited records and their secret, independent, fair inclusion bits.

    Args:
        shard: the client's records.
        records: how many are audited, at most three quarters of the client's.
        worlds: K, how many replays.
        keys: the streams of the audited client.
        relation: how neighbouring data sets differ.
        tail: what made audited records hard to fit, with the same keys.

    Raises:
        ValueError: the client holds fewer than four records.
    """
    size = len(shard.train)
    if size < 4:
        raise ValueError(
            f"audit.client={shard.client}: it holds {size} records, too few to audit (4 are needed)"
        )
    positions = draw_audited_positions(size, records, keys)
    audited = positions.sort().values
    made_hard = positions_by_kind(tail or HardExamples(), positions).items()
    kinds = {
        kind: torch.searchsorted(audited, of_kind).sort().values for kind, of_kind in made_hard
    }
    generator = keys.fold("secret", "coins").torch()
    masks = torch.rand(worlds, len(audited), generator=generator) < 0.5
    return MembershipGame(shard.train, audited, masks, relation, kinds)


# The others' part of a round is computed once, from their own data and without noise; each replay
# adds fresh noise of all clients' shares. So membership attacks are granted what the other clients'
# data add to the sum, as differential privacy grants it, and none of their noise. Attacks without
# replays are not: they read the sum as if it were one client's.
Uploads = Mapping[str, Tensors]  # name of an upload -> its tensors


def count_model_numbers(plan: Plan) -> int:
    """Numbers in the classifier that travels."""
    method = method_of_client(plan.method, plan.victim)
    model = method.audit_hooks.classifier(plan.problem)
    if model is None:
        return 0
    return sum(t.numel() for t in model.state_dict().values())


def most_kept_rounds(plan: Plan) -> int:
    """How many rounds of a phase are kept, if the classifier is what travels both ways."""
    return kept_round_limit(2 * BYTES_PER_NUMBER * count_model_numbers(plan))


def spread_replays(audit: AuditSettings, plan: Plan, shard: Shard) -> AuditSettings:
    """``audit.replays`` shared by how many rounds there are to replay of the longest phase: those
    in which the audited client takes part, and which are kept. Unchanged if ``audit.replays`` does
    not decide. shard: of the audited client."""
    if audit.replays is None:
        return audit
    by_phase = Counter(
        plan.method.audit_hooks.phase(t)
        for t in range(plan.method.rounds)
        if plan.victim in plan.participants(t)
    )
    longest = max(by_phase.values())
    if longest > LEAST_KEPT_ROUNDS:
        longest = min(longest, most_kept_rounds(plan))
    records = min(audit.records, len(shard.train))
    split = split_replays(audit.replays, longest, records)
    return replace(audit, worlds=split.shadow_models, rounds=split.rounds)


def scale_noise(noise: Noise, times: float) -> Noise:
    """Normal draws times a constant (0: none at all).

    Uniform draws stay as they are: they toss the coins of a sample, and no mechanism whose noise is
    dealt among clients (``SHARE_CLASSES``) makes its noise of them.
    """

    def refuse_laplace(shape: tuple[int, ...]) -> Tensor:
        raise ValueError(
            "Laplace noise cannot be divided among clients: the sum would not be Laplace"
        )

    return CustomNoise.around(
        noise, normal=lambda shape: noise.normal(shape) * times, laplace=refuse_laplace
    )


def replay_context(plan: Plan, round: int) -> ClientContext:
    """The audited client's context; under a sum, its noise is that of all clients' shares
    together."""
    ctx = plan.client_context(round, plan.victim)
    if plan.trust.is_summed:
        ctx.noise = scale_noise(ctx.noise, math.sqrt(len(plan.participants(round))))
    return ctx


def other_uploads(
    plan: Plan, round: int, broadcast: Mapping[str, Tensors], shards: Sequence[Shard]
) -> Uploads:
    """The sum of the other clients' uploads in a round, without their noise; {} where the server
    sees single uploads."""
    total: dict[str, dict[str, Tensor]] = {}
    for client in plan.participants(round) if plan.trust.is_summed else ():
        if client == plan.victim:
            continue
        ctx = plan.client_context(round, client)
        ctx.noise = scale_noise(ctx.noise, 0.0)
        upload, memory = plan.method.local(broadcast, {}, shards[client].client_data, ctx)
        if memory:
            method_name = type(plan.method).__name__
            raise ValueError(
                f"trust={plan.trust.name}: what {method_name}'s clients remember is not replayed"
            )
        for name, value in plan.channel.send(upload, ctx)[0].values.items():
            into = total.setdefault(name, {})
            for key, tensor in value.items():
                into[key] = into.get(key, torch.zeros(())) + tensor.double()
    return total


def uploads_seen_by_server(plan: Plan, round: int, sent: Uploads, others: Uploads) -> Uploads:
    """The server's view of one client's upload: the upload itself, or its sum (or mean) with those
    of the others."""
    if not plan.trust.is_summed:
        return sent
    if plan.method.aggregation_kind(plan.mechanisms) == "mean":
        divisor = len(plan.participants(round))
    else:
        divisor = 1
    seen_by_server: dict[str, Tensors] = {}
    for name, value in sent.items():
        sums = {key: tensor.double() + others[name][key] for key, tensor in value.items()}
        seen_by_server[name] = {key: (total / divisor).float() for key, total in sums.items()}
    return seen_by_server


def plan_of_replay(plan: Plan, world: int) -> Plan:
    """The plan with a world's own random streams."""
    return replace(plan, keys=plan.keys.fold("world", world))


def memory_after_round(plan: Plan, snapshot: Snapshot, memory: State, shard: Shard) -> State:
    """The audited client's memory after a round that it began with ``memory``; by ``memory_after``
    without its upload."""
    ctx = plan.client_context(snapshot.round, plan.victim)
    return plan.method.audit_hooks.memory_after(snapshot.broadcast, memory, shard.client_data, ctx)


# round -> what the client made of it, and remembers
ResultsByRound = dict[int, tuple[Upload, ClientContext, State]]


@dataclass(frozen=True)
class ReplayedRound:
    """What the client would have sent in one round, and what it remembers after it."""

    sent: Mapping[str, Tensors]
    memory: State


@dataclass(frozen=True)
class ClientReplay:
    """Some worlds of one audited round, self-contained so that any worker can run them.

    chain: the client's rounds, from the first that the audited one depends on to the audited one;
    shard: the client's data before any coin flip; batched: all worlds at once by ``local_batched``,
    else one by one; passing: earlier rounds of the chain whose uploads are wanted too; others:
    round -> what the other clients add, where the server sees sums."""

    plan: Plan
    chain: tuple[Snapshot, ...]
    shard: Shard
    game: MembershipGame
    worlds: Sequence[int]
    batched: bool = False
    passing: frozenset[int] = frozenset()
    others: Mapping[int, Uploads] = field(default_factory=dict)

    def run(self) -> list[Mapping[str, Tensors]] | None:
        """The messages of the client in the last round of the chain, for each replay; None as of
        ``run_by_round``."""
        results = self.run_by_round()
        if results is None:
            return None
        return [rounds[self.chain[-1].round].sent for rounds in results]

    def run_by_round(self) -> list[dict[int, ReplayedRound]] | None:
        """The messages (and the memory after it) of the last round and of those in ``passing``, by
        round for each replay; None if ``batched`` is set and the method has no batched form of one
        of the rounds."""
        plans = [plan_of_replay(self.plan, world) for world in self.worlds]
        shards = [self.game.shard_of_replay(self.shard, world) for world in self.worlds]
        results: list[ResultsByRound] | None
        if self.batched:
            results = self._replay_batched(plans, shards)
        else:
            results = [self._replay_singly(plan, shard) for plan, shard in zip(plans, shards)]
        if results is None:
            return None
        return [self._send_rounds(results_by_round) for results_by_round in results]

    def _send_rounds(self, results_by_round: ResultsByRound) -> dict[int, ReplayedRound]:
        """What the server sees of the uploads of each round."""
        replayed = {}
        for t, (upload, ctx, memory) in results_by_round.items():
            # the same context as the local work: noise on what is sent comes next in its stream
            sent = self.plan.channel.send(upload, ctx)[0].values
            view = uploads_seen_by_server(self.plan, t, sent, self.others.get(t, {}))
            replayed[t] = ReplayedRound(view, memory)
        return replayed

    def _is_wanted_round(self, snapshot: Snapshot) -> bool:
        return snapshot.round == self.chain[-1].round or snapshot.round in self.passing

    def _replay_singly(self, plan: Plan, shard: Shard) -> ResultsByRound:
        memory: State = {}
        done: ResultsByRound = {}
        for snapshot in self.chain:
            if not self._is_wanted_round(snapshot):
                memory = memory_after_round(plan, snapshot, memory, shard)
                continue
            ctx = replay_context(plan, snapshot.round)
            upload, memory = plan.method.local(snapshot.broadcast, memory, shard.client_data, ctx)
            done[snapshot.round] = (upload, ctx, memory)
        return done

    def _replay_batched(
        self, plans: Sequence[Plan], shards: Sequence[Shard]
    ) -> list[ResultsByRound] | None:
        results: list[ResultsByRound] = [{} for _ in plans]
        memories: list[State] = [{} for _ in plans]
        for snapshot in self.chain:
            contexts = [replay_context(plan, snapshot.round) for plan in plans]
            replayed = self.plan.method.audit_hooks.local_batched(
                snapshot.broadcast, memories, [shard.client_data for shard in shards], contexts
            )
            if replayed is None:
                return None
            memories = [memory for _, memory in replayed]
            if self._is_wanted_round(snapshot):
                for done, (upload, memory), ctx in zip(results, replayed, contexts):
                    done[snapshot.round] = (upload, ctx, memory)
        return results


def round_chain(plan: Plan, snapshots: Mapping[int, Snapshot], round: int) -> tuple[Snapshot, ...]:
    """The rounds that a replay of ``round`` must run: only that round if the client remembers
    nothing."""
    target = snapshots[round]
    if not plan.method.audit_hooks.upload_uses_memory(round, target.memory):
        return (target,)
    return tuple(snapshots[t] for t in sorted(snapshots) if t <= round)


def group_replays(worlds: int, size: int) -> list[range]:
    """Worlds 1 to ``worlds`` - 1 (0 is the real run) in groups: world w is in group w // size. A
    group is always computed as a whole, so that what its worlds share does not depend on where an
    earlier audit was stopped."""
    groups = [range(max(1, index), min(index + size, worlds)) for index in range(0, worlds, size)]
    return [group for group in groups if len(group)]


def replay_cache_key(
    plan: Plan, chain: Sequence[Snapshot], game: MembershipGame, config: str
) -> str:
    """The folder name of cached worlds: the same for the same config, data, broadcasts and audited
    records."""
    h = hashlib.blake2b(f"{config}|{plan.data}".encode() + SIGNALS_VERSION, digest_size=8)
    h.update(
        str(plan.keys.seed).encode()
        + digest_tensors({"ids": game.whole.ids, "audited": game.audited}).encode()
    )
    for snapshot in chain:
        h.update(f"{snapshot.round}".encode())
        for name in sorted(snapshot.broadcast):
            h.update(digest_tensors(snapshot.broadcast[name]).encode())
    return h.hexdigest()


def restore_memories(plan: Plan, progress: Progress, shard: Shard) -> Progress:
    """``progress`` with the audited client's memory before each of its kept rounds and after the
    last. shard: what the client trained on. Unchanged where nothing is marked. Raises ValueError
    where local work drew noise of the operating system, or of the client's own secret: another
    draw of it gives another memory."""
    if not is_remote_memory(progress.memories.get(plan.victim, {})):
        return progress
    # others act on what is sent, after local work
    noised_queries = sorted(set(plan.mechanisms) & set(plan.method.queries))
    if noised_queries and plan.noise_source != "seed":
        raise ValueError(
            f"privacy.noise_source={plan.noise_source}: what client {plan.victim} "
            f"remembers depends on noise of {', '.join(noised_queries)} that "
            "cannot be drawn again; must be seed if the clients of an audited "
            "deployment have memory"
        )
    memory: State = {}
    snapshots = dict(progress.snapshots)
    for t in sorted(snapshots):
        snapshots[t] = replace(snapshots[t], memory=memory)
        memory = {
            name: value.detach()
            for name, value in memory_after_round(plan, snapshots[t], memory, shard).items()
        }
    return replace(
        progress, snapshots=snapshots, memories={**progress.memories, plan.victim: memory}
    )


# Records of noise and sampling are private and never on disk, so they are lost with the process.
# Noise that is not the operating system's can be drawn again: nothing is taken over unless what was
# sent has the digests that the ledger has.


def recover_noise_log(
    plan: Plan,
    shards: Sequence[Shard],
    engine: Any,
    empty: Ledger,
    ledger: Ledger,
    record: NoiseLog,
    observed: list[ObservedRound] | None = None,
) -> None:
    """Fill ``record`` where a round of ``ledger`` with protected releases is missing and can be
    repeated. empty: a ledger to repeat the run with. Nothing is done for noise that cannot be drawn
    again, and for real clients. observed: is given what the audited client released in these
            rounds."""
    wanted = {
        (row.round, row.client) for row in ledger.releases if row.is_protected
    } - record.rounds.keys()
    if not wanted or plan.noise_source == "os" or engine.clients_remember:
        return
    again = NoiseLog(plan.victim)
    training = start_training(plan, empty)
    heard_rounds = list[ObservedRound]()
    last = max(round for round, _ in wanted)
    heard = None if observed is None else heard_rounds
    with show_progress("note the noise of rounds trained before", last + 1) as bar:
        broadcast = None
        while training.round <= last:
            training, _, broadcast = run_round(
                plan, training, shards, engine, broadcast, heard, again
            )
            bar.advance(f"round {training.round - 1}")
    before = _digests_by_client_round(ledger)
    after = _digests_by_client_round(training.ledger)
    for round_ in wanted & again.rounds.keys():
        if before[round_] == after.get(round_):
            record.add_round(again.rounds[round_])
            if observed is not None:
                observed.extend(
                    observed_round
                    for observed_round in heard_rounds
                    if round_ == (observed_round.round, plan.victim)
                )


def _digests_by_client_round(ledger: Ledger) -> dict[tuple[int, int], list[str]]:
    digests: dict[tuple[int, int], list[str]] = {}
    for row in ledger.releases:
        if row.client != SERVER:
            digests.setdefault((row.round, row.client), []).append(row.digest)
    return digests

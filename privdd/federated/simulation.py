"""Rounds: the only caller of a method's ``local`` and ``aggregate``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dp_accounting as dpa

from privdd.core.keys import Keys
from privdd.core.placement import placed
from privdd.core.types import Problem, Received, Shard, State, Tensors, Values
from privdd.federated.channel import Channel, ClientContext, digest, rooted, shapes, size_of
from privdd.federated.dropped import Dropped
from privdd.federated.heard import Heard
from privdd.federated.kept_rounds import KEPT, spread_out
from privdd.federated.method import Method
from privdd.federated.noise_record import NoiseRecord, Watch, answers
from privdd.federated.trust import LOCAL, SUM, Trust, added, sum_rows, unseen
from privdd.privacy.description import description
from privdd.privacy.ledger import SERVER, Ledger
from privdd.privacy.mechanism import Mechanism, Row
from privdd.runtime.engine import Engine


@dataclass(frozen=True)
class Plan:
    """How a federation runs: who takes part, which noise, which client is audited.

    fraction: share of clients drawn each round (at least one); victim: the audited client. settings: a digest of
    the settings that this run differs in from others with its seed; paired_noise: draw the same noise all the same;
    trust: what the server sees of the uploads (mechanisms: as each client applies them under it).
    """

    keys: Keys
    problem: Problem
    method: Method
    mechanisms: Mapping[str, Mechanism] = field(default_factory=dict)
    noise_source: str = "seed"
    relation: str = "zero_out"
    fraction: float = 1.0
    victim: int = 0
    settings: str = ""
    paired_noise: bool = False
    trust: Trust = LOCAL

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"participation={self.fraction}: a share in (0, 1] is needed")
        if not 0 <= self.victim < self.problem.clients:
            raise ValueError(f"audit.client={self.victim}: must be in [0, {self.problem.clients})")

    @property
    def channel(self) -> Channel:
        outward = {name: m for name, m in self.mechanisms.items() if name in self.method.uploads}
        return Channel(self.method.uploads, outward, self.method.visible_to)

    @property
    def stream(self) -> str:
        """What noise depends on besides seed, secret, round and client.

        Two runs that share noise undo it: z n + u and 4 z n + u give u. So it is another one wherever a setting or
        a mechanism is, unless ``paired_noise`` asks for the same.
        """
        return "" if self.paired_noise else description([self.settings, self.mechanisms])

    def participants(self, round: int) -> list[int]:
        """Who takes part in a round, in increasing order: those asked, but for those that drop out."""
        return self.trust.staying(self.asked(round), Keys(self.keys.seed).fold("public", round))

    def asked(self, round: int) -> list[int]:
        """Public, seeded client sampling without replacement, in increasing order; all where the method needs them."""
        count = max(1, round_half_up(self.fraction * self.problem.clients))
        if count == self.problem.clients or self.method.everyone(round):
            return list(range(self.problem.clients))
        # by the seed alone: who takes part is public, and the same in every replay
        rng = Keys(self.keys.seed).fold("public", round, "clients").numpy()
        return sorted(int(k) for k in rng.choice(self.problem.clients, count, replace=False))

    def context(self, round: int, client: int, **more: Any) -> ClientContext:
        """What client ``client`` holds in ``round``."""
        inner = {name: m for name, m in self.mechanisms.items() if name in self.method.queries}
        keys = self.keys.fold("round", round, "client", client)
        held = (inner, self.method.queries, self.noise_source, self.relation)
        return ClientContext(round, client, keys, self.problem, *held, **{"stream": self.stream, **more})


def round_half_up(value: float) -> int:
    return math.floor(value + 0.5)


@dataclass(frozen=True)
class Snapshot:
    """The state of one client before a round: enough to replay its local work."""

    round: int
    broadcast: Values
    memory: State
    sent: Values = field(default_factory=dict)
    phase: str = ""


@dataclass(frozen=True)
class Progress:
    """The whole state of a run between two rounds; ``checkpoint`` writes it, ``resume`` reads it."""

    round: int
    server: State
    memories: Mapping[int, State]
    ledger: Ledger
    accuracy: tuple[float, ...] = ()
    diverged: int | None = None  # the first round after which there was no finite model
    uploaded: tuple[Mapping[int, int], ...] = ()  # by round: client -> bytes
    downloaded: tuple[Mapping[int, int], ...] = ()
    sent: Mapping[str, str] = field(default_factory=dict)  # broadcast name -> digest the clients hold
    sent_ids: tuple[int, ...] = ()  # ledger ids of the server's latest rows
    inbox_ids: tuple[int, ...] = ()  # ... and of all that it received since
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One client's round, self-contained so that any worker can run it."""

    plan: Plan
    round: int
    client: int
    broadcast: Values
    memory: State
    shard: Shard


Step = tuple[Received, list[Row], State]


def client_step(task: Task) -> Step:
    """Local work and the channel, in one pure call."""
    return heard_step(task)[0]


def heard_step(task: Task, watch: Watch | None = None) -> tuple[Step, Heard | None]:
    """``client_step``, and the queries that the audited client released; watch: notes noise and sampling."""
    ctx = task.plan.context(task.round, task.client, watch=watch)
    upload, memory = task.plan.method.local(task.broadcast, task.memory, task.shard, ctx)
    received, rows = task.plan.channel.send(upload, ctx)
    heard = None
    if task.client == task.plan.victim:
        outputs = tuple({n: t.detach().cpu() for n, t in value.items()} for value in ctx.outputs)
        heard = Heard(task.round, task.broadcast, task.memory, outputs, tuple(ctx.taken))
    return (received, rows, {name: t.detach() for name, t in memory.items()}), heard


def watched_step(task: Task) -> tuple[Step, Watch]:
    """``client_step``, and what its noise and its sampling were."""
    watch = Watch(task.round, task.client, task.client == task.plan.victim, len(task.shard.train))
    answer, watch.heard = heard_step(task, watch)
    return answer, watch


def start(plan: Plan, ledger: Ledger) -> Progress:
    """Before the first round."""
    return Progress(0, plan.method.init(plan.problem, plan.keys.fold("public", "init")), {}, ledger)


def step(
    plan: Plan,
    progress: Progress,
    shards: Sequence[Shard],
    engine: Engine,
    seen: Values | None = None,
    transcript: list[Heard] | None = None,
    record: NoiseRecord | None = None,
) -> tuple[Progress, list[Received], Values]:
    """One round: (new progress, what the server received in client order, or the sum of it, what it had broadcast).

    seen: the broadcast of the round before, so that tensors which did not change are not hashed again; transcript: is
    given what the audited client released; record: what the noise and the sampling of all clients were.
    """
    t = progress.round
    broadcast = plan.method.broadcast(progress.server)
    progress, fresh = _record_broadcast(plan, progress, broadcast, seen or {})
    chosen = plan.participants(t)
    tasks = [Task(plan, t, k, broadcast, progress.memories.get(k, {}), shards[k]) for k in chosen]
    ledger, memories = progress.ledger, dict(progress.memories)
    inbox: list[Received] = []
    ids: list[int] = []
    uploaded: dict[int, int] = {}
    before = progress.memories.get(plan.victim, {})
    for received, rows, memory in answers(engine, tasks, client_step, watched_step, record, transcript):
        rows = unseen(rows) if plan.trust.summed else rows
        written = ledger.append(rooted(rows, len(ledger), progress.sent_ids), absolute=True)
        if isinstance(received, Dropped):  # nothing of it is used, so nothing that the server sends depends on it
            continue
        ids.extend(written)
        inbox.append(received)
        memories[received.client] = memory
        uploaded[received.client] = size_of(received.values)
    if plan.trust.summed:
        inbox, ids = _handed(plan, ledger, inbox, ids)
    server = progress.server  # stays as it is where too few clients are left for a sum
    if inbox or not plan.trust.summed:
        held = placed((server, inbox), plan.problem.device)
        server = placed(plan.method.aggregate(*held, plan.keys.fold("round", t, "server")), "cpu")
    snapshots = _snapshots(plan, progress.snapshots, t, broadcast, before, inbox)
    moved = replace(
        progress,
        round=t + 1,
        server={name: tensor.detach() for name, tensor in server.items()},
        memories={k: m for k, m in memories.items() if m},
        ledger=ledger,
        uploaded=(*progress.uploaded, uploaded),
        downloaded=(*progress.downloaded, dict.fromkeys(chosen, fresh)),
        inbox_ids=(*progress.inbox_ids, *ids),
        snapshots=snapshots,
    )
    return moved, inbox, broadcast


def _handed(plan: Plan, ledger: Ledger, inbox: list[Received], ids: list[int]) -> tuple[list[Received], list[int]]:
    """In place of single uploads: (their sum, the ids of its rows). Nothing where there is none."""
    kind = plan.method.adds_up(plan.mechanisms)
    if kind is None or not inbox:
        return [], []
    total = added(inbox, kind)
    rows = [ledger.releases[at] for at in ids]
    of = {name: [row.id for row in rows if row.name == name] for name in total.values}
    return [total], list(ledger.append(sum_rows(total, plan.method.uploads, plan.method.visible_to, of), absolute=True))


def finish(plan: Plan, progress: Progress) -> Progress:
    """After the last round the server publishes what it holds: adversary ``public`` sees it."""
    final = plan.method.broadcast(progress.server)
    return _record_broadcast(plan, progress, final, {}, ("peer", "public"))[0]


def _record_broadcast(
    plan: Plan, progress: Progress, broadcast: Values, seen: Values, visible_to: tuple[str, ...] = ("peer",)
) -> tuple[Progress, int]:
    """Ledger rows for what the server sends for the first time or changed; the rest clients already have."""
    undeclared = sorted(set(broadcast) - set(plan.method.broadcasts))
    if undeclared:
        raise ValueError(f"broadcast of undeclared {undeclared}; declared are {sorted(plan.method.broadcasts)}")
    rows, digests, fresh = [], dict(progress.sent), 0
    origin = tuple(sorted({*progress.sent_ids, *progress.inbox_ids}))
    for name, value in broadcast.items():
        same = name in seen and seen[name].keys() == value.keys() and all(seen[name][k] is v for k, v in value.items())
        mark = digests[name] if same else digest(value)
        if digests.get(name) == mark:
            continue
        digests[name] = mark
        fresh += size_of({name: value})
        rows.append(_server_row(plan, progress.round, name, value, mark, origin, visible_to))
    ids = progress.ledger.append(rows, absolute=True)
    if not ids:  # nothing new: what had been received is still behind the next broadcast
        return replace(progress, sent=digests), fresh
    return replace(progress, sent=digests, sent_ids=tuple(ids), inbox_ids=()), fresh


def _server_row(
    plan: Plan, round: int, name: str, value: Tensors, mark: str, origin: tuple[int, ...], visible_to: tuple[str, ...]
) -> Row:
    return Row(
        round=round,
        client=SERVER,
        name=name,
        surface=str(plan.method.broadcasts[name]),
        visible_to=visible_to,
        shape=shapes(value),
        digest=mark,
        event=dpa.NoOpDpEvent(),
        why="computed by the server from what it had received" if origin else "public initial state",
        post_of=origin,
    )


def _snapshots(
    plan: Plan, kept: Mapping[int, Snapshot], round: int, broadcast: Values, memory: State, inbox: Sequence[Received]
) -> dict[int, Snapshot]:
    """Rounds of the victim spread over every phase, with its first and latest; all rounds where memory links them."""
    in_sum = plan.trust.summed and plan.victim in plan.participants(round)
    mine = [r for r in inbox if r.client == plan.victim or (in_sum and r.client == SUM)]
    if not mine:
        return dict(kept)
    new = Snapshot(round, broadcast, memory, mine[0].values, plan.method.phase(round))
    if plan.method.remembers(round, memory) or any(s.memory for s in kept.values()):
        return {**kept, round: new}
    alike = sorted(t for t, s in kept.items() if s.phase == new.phase and set(s.sent) == set(new.sent))
    left = spread_out([*alike, round], KEPT)
    return {**{t: s for t, s in kept.items() if t not in alike or t in left}, round: new}

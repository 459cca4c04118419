"""Rounds: the only caller of a method's ``local`` and ``aggregate``.

Also here: a client whose reply could not be used (the round goes on without it, and the ledger
keeps what it cost); which rounds of the audited client are kept, to be replayed after training; and
whether there are enough clients for client-level privacy, known before training from public numbers
alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dp_accounting as dpa

from attacks.types import Surface
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import Problem, Received, Shard, State, Tensors, Values
from privdd.federated.aggregation import (
    ANALYST_ONLY,
    LOCAL,
    SUM_CLIENT,
    Trust,
    sum_ledger_rows,
    sum_uploads,
)
from privdd.federated.channel import (
    Channel,
    ClientContext,
    count_bytes,
    digest_tensors,
    link_to_broadcast,
    tensor_shapes,
)
from privdd.federated.method import Method
from privdd.federated.noise_log import NoiseLog, ObservedRound, RoundLog
from privdd.privacy.ledger import SERVER, Ledger
from privdd.privacy.mechanism import LedgerRow, Mechanism
from privdd.privacy.mechanisms import ClientLevel
from privdd.privacy.noise import settings_hash
from privdd.runtime.engine import Engine

# Rounds of a phase that are kept for replays: as many as fit into the bytes, within these bounds.
LEAST_KEPT_ROUNDS = 8
MOST_KEPT_ROUNDS = 32
KEPT_BYTES = 2**28
DROPPED_REPLY = "dropped reply"
UNDECLARED_ARRIVAL = "arrived, and the method declares no such message"
# noise over signal, after all rounds, above which little or nothing is learned
MAX_NOISE_TO_SIGNAL = 1.0


def kept_round_limit(round_bytes: int) -> int:
    """How many rounds of a phase are kept.

    Args:
        round_bytes: Of one round: what the client is sent, and what it sends.

    Returns:
        From LEAST_KEPT_ROUNDS to MOST_KEPT_ROUNDS.
    """
    return min(MOST_KEPT_ROUNDS, max(LEAST_KEPT_ROUNDS, KEPT_BYTES // max(1, round_bytes)))


def select_spread_rounds(rounds: Sequence[int], most: int) -> list[int]:
    """At most ``most`` (2 or more) of increasing ``rounds``, the first and the last among them.

    Dropped one by one, the one that leaves the smallest gap first: so rounds that arrive one at a
    time stay spread over all of them, without it being known how many will come.
    """
    remaining = list(rounds)
    while len(remaining) > most:
        remaining.pop(
            min(range(1, len(remaining) - 1), key=lambda i: remaining[i + 1] - remaining[i - 1])
        )
    return remaining


@dataclass(frozen=True)
class DroppedClient:
    """In the place of what the server would have received."""

    client: int
    round: int


def dropped_rows(
    planned: Sequence[LedgerRow],
    uploads: Mapping[str, Surface],
    dropped: DroppedClient,
    why: str,
    *,
    uncovered: bool,
) -> list[LedgerRow]:
    """The ledger rows of a dropped client: all that its round was planned to spend, and a row that
    says why.

    What it sent was received, used or not, so its planned releases count. uncovered: it also sent
    what no planned mechanism covers, or says that it spent something else, so that last row has no
    finite epsilon."""
    unknown = [replace(row, shape={}, digest="") for row in planned]
    note = LedgerRow(
        round=dropped.round,
        client=dropped.client,
        name=DROPPED_REPLY,
        surface=str(next(iter(uploads.values()))),
        visible_to=("server",),
        shape={},
        digest="",
        event=dpa.NonPrivateDpEvent() if uncovered else dpa.NoOpDpEvent(),
        why=why,
        nonprivate_reason="the reply held tensors that no planned mechanism covers"
        if uncovered
        else None,
    )
    return [*unknown, note]


@dataclass(frozen=True)
class Plan:
    """How a federation runs: who takes part, which noise, which client is audited.

    fraction: share of clients drawn each round (at least one); victim: the audited client.
    settings: a digest of the settings that this run differs in from others with its seed;
    paired_noise: draw the same noise all the same; trust: what the server sees of the uploads
    (mechanisms: as each client applies them under it). data: a digest of all records, labels and
    their split ("" = not known): results of other data do not belong to this run."""

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
    data: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"participation={self.fraction}: a share in (0, 1] is needed")
        if not 0 <= self.victim < self.problem.clients:
            raise ValueError(f"audit.client={self.victim}: must be in [0, {self.problem.clients})")

    @property
    def channel(self) -> Channel:
        outward = {name: m for name, m in self.mechanisms.items() if name in self.method.uploads}
        return Channel(self.method.uploads, outward, self.method.audit_hooks.visible_to)

    @property
    def noise_stream(self) -> str:
        """What noise depends on besides seed, secret, round and client.

        Two runs that share noise undo it: z n + u and 4 z n + u give u. So it is another one
        wherever a setting or a mechanism is, unless ``paired_noise`` asks for the same.
        """
        if self.paired_noise:
            return ""
        return settings_hash([self.settings, self.mechanisms])

    def participants(self, round: int) -> list[int]:
        """The participants of a round, in increasing order: the clients asked, without those that
        drop out."""
        return self.trust.remaining_clients(
            self.asked_clients(round), Keys(self.keys.seed).fold("public", round)
        )

    def asked_clients(self, round: int) -> list[int]:
        """Public, seeded client sampling without replacement, in increasing order; all where the
        method needs them."""
        count = max(1, round_half_up(self.fraction * self.problem.clients))
        if count == self.problem.clients or self.method.needs_all_clients(round):
            return list(range(self.problem.clients))
        # by the seed alone: who takes part is public, and the same in every replay
        rng = Keys(self.keys.seed).fold("public", round, "clients").numpy()
        return sorted(int(k) for k in rng.choice(self.problem.clients, count, replace=False))

    def client_context(self, round: int, client: int, **more: Any) -> ClientContext:
        """The context of client ``client`` in ``round``."""
        inner = {name: m for name, m in self.mechanisms.items() if name in self.method.queries}
        keys = self.keys.fold("round", round, "client", client)
        held = (inner, self.method.queries, self.noise_source, self.relation)
        return ClientContext(
            round, client, keys, self.problem, *held, **{"stream": self.noise_stream, **more}
        )


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
    """The whole state of a run between two rounds; ``checkpoint`` writes it, ``resume`` reads
    it."""

    round: int
    server: State
    memories: Mapping[int, State]
    ledger: Ledger
    accuracy: tuple[float, ...] = ()
    diverged: int | None = None  # the first round after which there was no finite model
    uploaded: tuple[Mapping[int, int], ...] = ()  # by round: client -> bytes
    downloaded: tuple[Mapping[int, int], ...] = ()
    # broadcast name -> digest the clients hold
    sent: Mapping[str, str] = field(default_factory=dict)
    sent_ids: tuple[int, ...] = ()  # ledger ids of the server's latest rows
    inbox_ids: tuple[int, ...] = ()  # ... and of all that it received since
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)


@dataclass(frozen=True)
class WatchedValues(Mapping[str, Tensors]):
    """A client's messages as ``aggregate`` is given them. read: is given the names that it looks
    at, for what the server sends later depends on no other message."""

    values_by_name: Mapping[str, Tensors]
    read: set[str]

    def __getitem__(self, name: str) -> Tensors:
        value = self.values_by_name[name]
        self.read.add(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


@dataclass(frozen=True)
class ClientTask:
    """One client's round, self-contained so that any worker can run it."""

    plan: Plan
    round: int
    client: int
    broadcast: Values
    memory: State
    shard: Shard


StepResult = tuple[Received, list[LedgerRow], State]


def client_step(task: ClientTask) -> StepResult:
    """Local work and the channel, in one pure call."""
    return observed_step(task)[0]


def observed_step(
    task: ClientTask, watch: RoundLog | None = None
) -> tuple[StepResult, ObservedRound | None]:
    """``client_step``, and the queries that the audited client released; watch: notes noise and
    sampling."""
    ctx = task.plan.client_context(task.round, task.client, observer=watch)
    upload, memory = task.plan.method.local(
        task.broadcast, task.memory, task.shard.client_data, ctx
    )
    received, rows = task.plan.channel.send(upload, ctx)
    observed = None
    if task.client == task.plan.victim:
        outputs = tuple({n: t.detach().cpu() for n, t in value.items()} for value in ctx.outputs)
        observed = ObservedRound(task.round, task.broadcast, task.memory, outputs, tuple(ctx.taken))
    return (received, rows, {name: t.detach() for name, t in memory.items()}), observed


def logged_step(task: ClientTask) -> tuple[StepResult, RoundLog]:
    """``client_step``, and what its noise and its sampling were."""
    watch = RoundLog(
        task.round, task.client, task.client == task.plan.victim, len(task.shard.train)
    )
    answer, watch.observed = observed_step(task, watch)
    return answer, watch


def start_training(plan: Plan, ledger: Ledger) -> Progress:
    """Before the first round."""
    return Progress(0, plan.method.init(plan.problem, plan.keys.fold("public", "init")), {}, ledger)


def run_round(
    plan: Plan,
    progress: Progress,
    shards: Sequence[Shard],
    engine: Engine,
    last_broadcast: Values | None = None,
    transcript: list[ObservedRound] | None = None,
    record: NoiseLog | None = None,
) -> tuple[Progress, list[Received], Values]:
    """One round: (new progress, what the server received in client order, or the sum of it, what it
    had broadcast).

    last_broadcast: the broadcast of the round before, so that tensors which did not change are not
        hashed again; transcript: is given what the audited client released; record: what the noise
        and the sampling of all clients were.
    """
    t = progress.round
    broadcast = plan.method.broadcast(progress.server)
    progress, fresh = _record_broadcast(plan, progress, broadcast, last_broadcast or {})
    chosen = plan.participants(t)
    tasks = [
        ClientTask(plan, t, k, broadcast, progress.memories.get(k, {}), shards[k]) for k in chosen
    ]
    ledger = progress.ledger
    before = progress.memories.get(plan.victim, {})
    arrivals = _receive_uploads(plan, progress, _collect_answers(engine, tasks, record, transcript))
    inbox = arrivals.inbox
    ids = arrivals.ids
    if plan.trust.is_summed:
        inbox, ids = _replace_by_sum(plan, ledger, inbox, ids)
    server = progress.server  # stays as it is where too few clients are left for a sum
    if inbox or not plan.trust.is_summed:
        server, read = _update_server(plan, t, server, inbox)
        unread = {*plan.method.uploads} - read
        ids = [index for index in ids if ledger.releases[index].name not in unread]
    snapshots = _update_snapshots(plan, progress.snapshots, t, broadcast, before, inbox)
    moved = replace(
        progress,
        round=t + 1,
        server={name: tensor.detach() for name, tensor in server.items()},
        memories={k: m for k, m in arrivals.memories.items() if m},
        ledger=ledger,
        uploaded=(*progress.uploaded, arrivals.uploaded),
        downloaded=(*progress.downloaded, dict.fromkeys(chosen, fresh)),
        inbox_ids=(*progress.inbox_ids, *ids),
        snapshots=snapshots,
    )
    return moved, inbox, broadcast


@dataclass
class _Arrivals:
    """What the clients of a round sent: their messages in client order, the places of the rows in
    the ledger, all clients' memories, and bytes by client."""

    memories: dict[int, State]
    inbox: list[Received] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    uploaded: dict[int, int] = field(default_factory=dict)


def _receive_uploads(
    plan: Plan,
    progress: Progress,
    answers: Iterable[StepResult | tuple[DroppedClient, list[LedgerRow], State]],
) -> _Arrivals:
    """Write every answer into the ledger. Raises ValueError for an upload that the method does not
    declare."""
    ledger = progress.ledger
    arrivals = _Arrivals(dict(progress.memories))
    for received, rows, memory in answers:
        if plan.trust.is_summed:
            rows = [replace(row, visible_to=ANALYST_ONLY) for row in rows]
        written = ledger.append(
            link_to_broadcast(rows, len(ledger), progress.sent_ids), absolute=True
        )
        # nothing of it is used, so nothing that the server sends depends on it
        if isinstance(received, DroppedClient):
            continue
        if strange := sorted(received.values.keys() - plan.method.uploads.keys()):
            raise ValueError(
                f"round {progress.round}, client {received.client}: {strange[0]!r} "
                f"{UNDECLARED_ARRIVAL}"
            )
        arrivals.ids.extend(written)
        arrivals.inbox.append(received)
        arrivals.memories[received.client] = memory
        arrivals.uploaded[received.client] = count_bytes(received.values)
    return arrivals


def _update_server(
    plan: Plan, round: int, server: State, inbox: Sequence[Received]
) -> tuple[State, set[str]]:
    """The server's new state, and the names of the uploads that it was computed from."""
    state, messages = to_device((server, inbox), plan.problem.device)
    read = set[str]()
    watched = [replace(message, values=WatchedValues(message.values, read)) for message in messages]
    return to_device(_aggregate_messages(plan, round, state, watched), "cpu"), read


def _aggregate_messages(plan: Plan, round: int, server: State, inbox: Sequence[Received]) -> State:
    """The server's next state. Raises ValueError, one line, where it looks for a message or tensor
    that was not sent."""
    try:
        return plan.method.aggregate(server, inbox, plan.keys.fold("round", round, "server"))
    except KeyError as missing:
        what = (
            f"round {round}: {type(plan.method).__name__}.aggregate finds no {missing} in "
            "what clients sent"
        )
        raise ValueError(
            f"{what}: each upload must hold all tensors that the server needs"
        ) from missing


def _collect_answers(
    engine: Engine,
    tasks: Sequence[ClientTask],
    record: NoiseLog | None,
    transcript: list[ObservedRound] | None,
) -> Iterator[StepResult | tuple[DroppedClient, list[LedgerRow], State]]:
    """The clients' answers in order. Real clients keep their noise, and what they release, to
    themselves."""
    if (record is None and transcript is None) or engine.clients_remember:
        yield from engine.map(client_step, tasks)
        return
    for answer, watch in engine.map(logged_step, tasks):
        if transcript is not None and watch.observed is not None:
            transcript.append(watch.observed)
        watch.observed = None
        if record is not None:
            record.add_round(watch)
        yield answer


def _replace_by_sum(
    plan: Plan, ledger: Ledger, inbox: list[Received], ids: list[int]
) -> tuple[list[Received], list[int]]:
    """In place of single uploads: (their sum, the ids of its rows). Nothing where there is none."""
    kind = plan.method.aggregation_kind(plan.mechanisms)
    if kind is None or not inbox:
        return [], []
    total = sum_uploads(inbox, kind)
    rows = [ledger.releases[index] for index in ids]
    ids_by_name: dict[str, list[int]] = {name: [] for name in total.values}
    for row in rows:
        if row.name in ids_by_name:
            ids_by_name[row.name].append(row.id)
    method = plan.method
    summed = sum_ledger_rows(total, method.uploads, method.audit_hooks.visible_to, ids_by_name)
    return [total], list(ledger.append(summed, absolute=True))


def publish_final_state(plan: Plan, progress: Progress) -> Progress:
    """After the last round the server publishes what it holds: adversary ``public`` sees it."""
    final = plan.method.broadcast(progress.server)
    return _record_broadcast(plan, progress, final, {}, ("peer", "public"))[0]


def _record_broadcast(
    plan: Plan,
    progress: Progress,
    broadcast: Values,
    last_broadcast: Values,
    visible_to: tuple[str, ...] = ("peer",),
) -> tuple[Progress, int]:
    """Ledger rows for what the server sends for the first time or changed; the rest clients already
    have."""
    undeclared = sorted(set(broadcast) - set(plan.method.broadcasts))
    if undeclared:
        raise ValueError(
            f"broadcast of undeclared {undeclared}; declared are {sorted(plan.method.broadcasts)}"
        )
    rows = []
    digests = dict(progress.sent)
    fresh = 0
    origin = tuple(sorted({*progress.sent_ids, *progress.inbox_ids}))
    for name, value in broadcast.items():
        last = last_broadcast.get(name)
        is_unchanged = (
            last is not None
            and last.keys() == value.keys()
            and all(last[key] is t for key, t in value.items())
        )
        mark = digests[name] if is_unchanged else digest_tensors(value)
        if digests.get(name) == mark:
            continue
        digests[name] = mark
        fresh += count_bytes({name: value})
        row = LedgerRow(
            round=progress.round,
            client=SERVER,
            name=name,
            surface=str(plan.method.broadcasts[name]),
            visible_to=visible_to,
            shape=tensor_shapes(value),
            digest=mark,
            event=dpa.NoOpDpEvent(),
            why="computed by the server from received messages"
            if origin
            else "public initial state",
            post_of=origin,
        )
        rows.append(row)
    ids = progress.ledger.append(rows, absolute=True)
    if not ids:  # nothing new: what had been received is still behind the next broadcast
        return replace(progress, sent=digests), fresh
    return replace(progress, sent=digests, sent_ids=tuple(ids), inbox_ids=()), fresh


def _update_snapshots(
    plan: Plan,
    kept: Mapping[int, Snapshot],
    round: int,
    broadcast: Values,
    memory: State,
    inbox: Sequence[Received],
) -> dict[int, Snapshot]:
    """Rounds of the victim spread over every phase, with its first and latest; all rounds where
    memory links them."""
    in_sum = plan.trust.is_summed and plan.victim in plan.participants(round)
    mine = [r for r in inbox if r.client == plan.victim or (in_sum and r.client == SUM_CLIENT)]
    if not mine:
        return dict(kept)
    new = Snapshot(round, broadcast, memory, mine[0].values, plan.method.audit_hooks.phase(round))
    if plan.method.audit_hooks.upload_uses_memory(round, memory) or any(
        s.memory for s in kept.values()
    ):
        return {**kept, round: new}
    same_phase = sorted(
        t for t, s in kept.items() if s.phase == new.phase and set(s.sent) == set(new.sent)
    )
    most = kept_round_limit(count_bytes(new.broadcast) + count_bytes(new.sent))
    chosen = select_spread_rounds([*same_phase, round], most)
    return {**{t: s for t, s in kept.items() if t not in same_phase or t in chosen}, round: new}


def noise_to_signal(plan: Plan) -> tuple[float, int] | None:
    """(noise over signal after all rounds, clients of a round at which it would be
    ``MAX_NOISE_TO_SIGNAL``); None without such noise.

    The averaged update of one round is at most the clip norm C long, and its noise is about s
    sqrt(d) long, for d parameters and noise of std s on each number of the average. Over R rounds
    what is learned adds up R times, noise sqrt(R) times. On digits (a small MLP) 0.6 cost 5 points
    of accuracy (100 clients, epsilon 8), and 1.8 left chance (10 clients, ``fedavg_adaptive``)."""
    mechanism = plan.mechanisms.get("update")
    network = plan.method.audit_hooks.classifier(plan.problem)
    if not isinstance(mechanism, ClientLevel) or network is None:
        return None
    numbers = sum(p.numel() for p in network.parameters())
    clients = len(plan.asked_clients(0))
    # one client's; under secagg this falls as clients become more
    each = mechanism.noise_std / mechanism.clip_norm
    ratio = each * math.sqrt(numbers / clients / plan.method.rounds)
    needed = clients * (ratio / MAX_NOISE_TO_SIGNAL) ** (1 if plan.trust.is_summed else 2)
    return ratio, math.ceil(needed)


def too_few_clients_warning(plan: Plan) -> str:
    """A warning in one line, "" where the clients are enough."""
    noise_ratio = noise_to_signal(plan)
    if noise_ratio is None or noise_ratio[0] <= MAX_NOISE_TO_SIGNAL:
        return ""
    ratio, needed = noise_ratio
    advice = "" if plan.trust.is_summed else ", or trust=secagg"
    return (
        f"privacy.unit=client: {len(plan.asked_clients(0))} clients a round are too few: "
        "over all rounds the noise of the averaged update "
        f"is {ratio:.3g} times as long as what can be learned; about {needed} clients are "
        f"needed, or a smaller model{advice}"
    )

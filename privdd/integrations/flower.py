"""A real federation on Flower: any method's ``local`` in a ClientApp, its ``aggregate`` in a
ServerApp.

The client runs the channel, so mechanisms, noise and ledger rows are made where the data is; only
what the channel lets out, and its ledger rows, travel. Client memory stays in Flower's client
state, beside the latest reply: asked for that round again, a client sends the same reply, never
another draw of its noise. Flower keeps that state for one series of runs, so a federation goes on
in the series that it began in. The server runs a simulation's rounds with a ``GridEngine`` and
leaves a run folder that ``python -m privdd.audit run=DIR`` attacks. It believes no reply that
disagrees with the plan (``reply_check``). Needs ``pip install flwr``.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from privdd.auditing.pipeline import membership_game_of
from privdd.core.types import Received, Records, Shard, State, flatten_values, nest_values
from privdd.federated.channel import digest_tensors
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import (
    ClientTask,
    DroppedClient,
    Plan,
    Progress,
    client_step,
    dropped_rows,
)
from privdd.federated.trainer import (
    Trainer,
    accuracy_of_logits,
    measure_accuracy,
    predict_in_batches,
)
from privdd.integrations.reply_check import (
    BadReply,
    ExpectedReply,
    FederationFailed,
    Rehearsals,
    ReplyRules,
    check_reply,
    printable_line,
    read_reply_words,
    tensors_from_message,
    to_message_records,
)
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import LedgerRow
from privdd.runtime.files import lock_folder
from privdd.runtime.run_folder import RunFolder

LOG = logging.getLogger("privdd")
# what one client knows: the plan, and its own data
OwnData = Callable[[Context], tuple[Plan, Ledger, Shard]]
NOTHING_EXPECTED = ExpectedReply({}, (), 0)
STOP_RULES = ReplyRules()


def client_shard(experiment: Experiment, client: int) -> Shard:
    """The shard of one client, as an audited simulation trains on it (the audited client's after
    its coin flips)."""
    shard = experiment.shards[client]
    audited = experiment.auditing is not None and client == experiment.plan.victim
    if audited:
        return membership_game_of(experiment).shard_of_replay(shard, 0)
    return shard


def client_app(
    own: OwnData,
    *,
    tells_accuracy: bool = False,
    simulation: bool = False,
    mods: Sequence[Any] = (),
) -> ClientApp:
    """A ClientApp that answers ``query`` with its client number and ``train`` with one round's
    upload.

    own: from Flower's context (its node_config names the client) to plan, an empty ledger and the
        shard.
    tells_accuracy: answers ``evaluate`` with the accuracy of its own model on its own test split,
        which personal methods need. No ledger row covers that number: it is for studies.
    simulation: the data is nobody's, so noise may be drawn from the seed, which everyone who takes
        part knows. A real client draws its noise from the operating system or from a secret of its
        own, or answers with an error.
    mods: of Flower, around every message (``privdd_tap("run")`` records what leaves).
    """
    app = ClientApp(mods=list(mods))

    @app.query()
    def answer_query(message: Message, context: Context) -> Message:
        return Message(to_message_records({}, client=own(context)[2].client), reply_to=message)

    @app.train()
    def answer_train(message: Message, context: Context) -> Message:
        plan, ledger, shard = own(context)
        words = message.content.config_records["words"]
        digest = digest_tensors(tensors_from_message(message.content))
        round = int(words["round"])  # type: ignore[arg-type]
        reply = _stored_reply(context, shard.client, round, digest)
        if reply is None:
            _check_plan(plan, simulation)
            reply = _answer_round(message, context, digest, plan, ledger, shard)
        return Message(reply, reply_to=message)

    @app.evaluate()
    def answer_evaluate(message: Message, context: Context) -> Message:
        plan, _, shard = own(context)
        accuracies: dict[str, float] = {}
        if tells_accuracy:
            words = message.content.config_records["words"]
            memory = _load_memory(context, shard.client, bool(words["remembers"]))
            broadcast = tensors_from_message(message.content)
            accuracies = _own_accuracy(plan, broadcast, memory, shard.test)
        reply = to_message_records(
            {}, client=shard.client, refuses=int(not tells_accuracy), **accuracies
        )
        return Message(reply, reply_to=message)

    return app


def _answer_round(
    message: Message, context: Context, digest: str, plan: Plan, ledger: Ledger, shard: Shard
) -> RecordDict:
    """Run the client's step of a round that it has not answered, and store memory and reply.

    digest: of the broadcast.
    """
    words = message.content.config_records["words"]
    round = int(words["round"])  # type: ignore[arg-type]
    broadcast = nest_values(tensors_from_message(message.content))
    memory = _load_memory(context, shard.client, bool(words["remembers"]))
    task = ClientTask(plan, round, shard.client, broadcast, memory, shard)
    received, rows, memory = _run_client_step(task)
    ledger.append(rows)
    reply = to_message_records(
        flatten_values(received.values),
        client=shard.client,
        round=received.round,
        asked=digest,
        rows=json.dumps(ledger.to_json()),
        remembers=int(bool(memory)),
    )
    _store_memory(context, memory, reply, round=round, asked=digest)
    return reply


def _check_plan(plan: Plan, simulation: bool) -> None:
    """Raises FederationFailed under secure aggregation, which is not run here, and where the noise
    could be drawn again by the server, or cannot be drawn at all."""
    if plan.trust.is_summed:
        raise FederationFailed(
            f"trust={plan.trust.name}: this client would send its own upload, with a "
            "share of the noise"
        )

    if not plan.mechanisms:
        return
    if plan.noise_source == "seed" and not simulation:
        raise FederationFailed(
            "privacy.noise_source=seed: who takes part knows the seed and can take the "
            "noise off again; allowed are "
            "secret and os, and seed in a study: client_app(own, simulation=True)"
        )
    if plan.noise_source == "secret" and not plan.keys.secret:
        raise FederationFailed(
            "privacy.noise_source=secret: this client has no secret (PRIVDD_SECRET)"
        )


def _run_client_step(task: ClientTask) -> tuple[Received, list[LedgerRow], State]:
    """The client's round. Raises FederationFailed without the cause, for Flower sends the text of
    an exception."""
    try:
        return client_step(task)
    except Exception:
        LOG.exception("client %d, round %d", task.client, task.round)
        raise FederationFailed(
            f"client {task.client} failed in round {task.round}; its own log says why"
        ) from None


def _own_accuracy(plan: Plan, broadcast: State, memory: State, test: Records) -> dict[str, float]:
    """{"accuracy": 0..1} on the client's test split; empty where there is no model or no test
    record."""
    if not memory or not len(test):
        return {}
    logits = predict_in_batches(lambda x: plan.method.predict(broadcast, memory, x), test.x)
    return {"accuracy": accuracy_of_logits(logits, test.y)}


def _stored_reply(context: Context, client: int, round: int, asked: str) -> RecordDict | None:
    """The reply of the latest round where that round is asked for again, after a server that
    stopped.

    Sent twice it tells nothing new; worked out again it would release noise that no ledger counts.
    asked: digest of the broadcast. Raises FederationFailed for an earlier round, and for another
        broadcast."""
    latest = context.state.config_records.get("latest")
    if latest is None or int(latest["round"]) < round:  # type: ignore[arg-type]
        return None
    if latest["round"] != round:
        index = int(latest["round"])  # type: ignore[arg-type]
        raise FederationFailed(
            f"client {client} remembers round {index} and cannot repeat round {round}"
        )
    if latest["asked"] != asked:
        raise FederationFailed(
            f"client {client} answered round {round} already, to another broadcast"
        )
    return RecordDict({part: context.state[f"reply {part}"] for part in ("tensors", "words")})


def _load_memory(context: Context, client: int, expected: bool) -> State:
    """The client's stored memory. Raises FederationFailed if the server expects one and there is
    none."""
    if "tensors" in context.state:
        memory = tensors_from_message(context.state)
    else:
        memory = {}
    if expected and not memory:
        raise FederationFailed(
            f"client {client} has lost its memory of earlier rounds; go on in the same run series"
        )
    return memory


def _store_memory(context: Context, memory: State, sent: RecordDict, **latest: int | str) -> None:
    """Keep the memory and the latest reply, in the place of the one before."""
    for name, record in to_message_records(memory).items():
        context.state[name] = record
    for name, record in sent.items():
        context.state[f"reply {name}"] = record
    context.state["latest"] = ConfigRecord({**latest})


ClientResult = tuple[Received | DroppedClient, list[LedgerRow], State]


@dataclass(frozen=True)
class GridEngine:
    """Runs a round's tasks on the clients of a Flower grid. timeout: seconds for one round."""

    grid: Grid
    nodes: Mapping[int, int]  # client -> Flower's node
    timeout: float = 3600.0
    rules: ReplyRules = STOP_RULES
    rehearsals: Rehearsals = field(default_factory=Rehearsals)
    # only such an engine may go on from a checkpoint without memories
    clients_remember: ClassVar[bool] = True

    def map(self, fn: Callable[..., Any], tasks: Iterable[ClientTask]) -> Iterator[ClientResult]:
        """Results in the order of the tasks, once every reply has been checked.

        Raises FederationFailed where a client does not answer or its reply cannot be used; under
        ``bad_reply=drop`` only where no reply of the round can be used.
        """
        work = list(tasks)
        sent = {t.client: flatten_values(t.broadcast) for t in work}
        messages = [
            Message(
                to_message_records(sent[t.client], round=t.round, remembers=int(bool(t.memory))),
                self.nodes[t.client],
                "train",
                group_id=str(t.round),
            )
            for t in work
        ]
        replies = self._collect_replies(messages)
        marks: dict[int, str] = {}  # by identity: the clients of a round are sent the same
        results = []
        for task in work:
            mark = marks.setdefault(id(task.broadcast), digest_tensors(sent[task.client]))
            results.append(self._receive_result(task, replies[task.client], mark))
        if all(isinstance(received, DroppedClient) for received, *_ in results):
            raise FederationFailed(
                f"round {work[0].round}: no client's reply can be used; {results[-1][1][-1].why}"
            )
        yield from results

    def collect_accuracy(
        self, plan: Plan, progress: Progress, test: Records, shards: Sequence[Shard]
    ) -> float:
        """The accuracy as in a simulation; if each client predicts with its own memory, the mean of
        the reported ones.

        Asked are the clients that took part; they are sent what they would be sent next, and no
        more. Raises FederationFailed where one does not answer or keeps its accuracy to itself;
        what it tells that is no accuracy is left out of the mean under ``bad_reply=drop``.
        """
        if plan.method.audit_hooks.accuracy_kind == "global":
            return measure_accuracy(plan, progress, test, shards)
        sent = flatten_values(plan.method.broadcast(progress.server))
        group = str(progress.round)
        clients = sorted(progress.memories)
        messages = [
            Message(
                to_message_records(sent, remembers=1), self.nodes[k], "evaluate", group_id=group
            )
            for k in clients
        ]
        replies = self._collect_replies(messages)
        values = []
        for client in clients:
            if not replies[client]:
                raise FederationFailed(
                    f"client {client} did not report its accuracy after round "
                    f"{progress.round - 1}; resume when it is back"
                )
            try:
                values.extend(_read_accuracy(plan, client, replies[client]))
            except BadReply as bad:
                self._stop_or_warn(f"client {client} (node {self.nodes[client]}), accuracy: {bad}")
        return sum(values) / len(values) if values else 0.0

    def _collect_replies(self, messages: Sequence[Message]) -> dict[int, list[Message]]:
        """client -> its replies, told apart by the node that they came from, whatever they say."""
        clients = {node: client for client, node in self.nodes.items()}
        replies: dict[int, list[Message]] = {client: [] for client in self.nodes}
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            node = reply.metadata.src_node_id
            if node in clients:
                replies[clients[node]].append(reply)
            else:
                LOG.warning(
                    "node %d answers without having been asked; it is not listened to", node
                )
        return replies

    def _receive_result(
        self, task: ClientTask, replies: Sequence[Message], mark: str
    ) -> ClientResult:
        planned = NOTHING_EXPECTED
        try:
            if replies and replies[0].has_error():
                raise BadReply(f"failed: {replies[0].error.reason}")  # its text is all that it sent
            planned = self.rehearsals.expected_reply(task)
            return self._check_or_rehearse(task, replies, planned, mark)
        except BadReply as bad:
            line = (
                f"client {task.client} (node {self.nodes[task.client]}), round {task.round}: {bad}"
            )
            if not replies:
                line = (
                    f"client {task.client} did not answer in round {task.round}; resume when "
                    "it is back"
                )
            self._stop_or_warn(line)
            gone = DroppedClient(task.client, task.round)
            rows = dropped_rows(
                planned.rows, task.plan.method.uploads, gone, line, uncovered=bad.uncovered
            )
            return gone, rows, {}

    def _check_or_rehearse(
        self, task: ClientTask, replies: Sequence[Message], planned: ExpectedReply, mark: str
    ) -> ClientResult:
        if len(replies) != 1:
            raise BadReply(f"answered {len(replies)} times", uncovered=len(replies) > 1)
        try:
            return check_reply(task, replies[0], planned, mark, self.rules)
        except BadReply:  # a rehearsal of a round like this one may not do for this one
            return check_reply(
                task, replies[0], self.rehearsals.expected_reply(task, anew=True), mark, self.rules
            )

    def _stop_or_warn(self, line: str) -> None:
        if self.rules.bad_reply == "stop":
            raise FederationFailed(line) from None
        LOG.warning("%s; the round goes on without it", line)


def _read_accuracy(plan: Plan, client: int, replies: Sequence[Message]) -> list[float]:
    """The accuracy that a client reports, as a list of one number; empty if it has nothing to
    measure."""
    if len(replies) != 1 or replies[0].has_error():
        raise BadReply(
            f"failed: {replies[0].error.reason}"
            if replies[0].has_error()
            else "answered more than once"
        )
    content = replies[0].content
    has_words = "words" in content.config_records and "accuracy" in content.config_records["words"]
    words = read_reply_words(
        content,
        {"client": int, "refuses": int, "order": str, **({"accuracy": float} if has_words else {})},
    )
    if words["client"] != client:
        raise BadReply(f"answers as client {words['client']}")
    if words["refuses"]:
        name = type(plan.method).__name__
        raise FederationFailed(
            f"client {client}: {name} is measured at the clients, which takes "
            "client_app(own, tells_accuracy=True)"
        )
    if has_words and not (math.isfinite(words["accuracy"]) and 0 <= words["accuracy"] <= 1):
        raise BadReply(f"accuracy={words['accuracy']!r}: a number from 0 to 1 is needed")
    return [words["accuracy"]] if has_words else []


def find_clients(grid: Grid, clients: int, timeout: float = 60.0) -> dict[int, int]:
    """client -> node, once ``clients`` nodes are there.

    Raises FederationFailed where some stay away ``timeout`` s, and where a node says no client's
    number or another's."""
    deadline = time.monotonic() + timeout
    while len(list(grid.get_node_ids())) < clients and time.monotonic() < deadline:
        time.sleep(min(0.5, timeout / 10))
    nodes: dict[int, int] = {}
    for reply in grid.send_and_receive(
        [Message(to_message_records({}), n, "query") for n in grid.get_node_ids()], timeout=timeout
    ):
        client = _client_number(reply, clients)
        node = reply.metadata.src_node_id
        if nodes.setdefault(client, node) != node:
            raise FederationFailed(
                f"nodes {nodes[client]} and {node} both say that they are client {client}"
            )
    missing = sorted(set(range(clients)) - set(nodes))
    if missing:
        raise FederationFailed(f"clients {missing} of {clients} have no node; found {len(nodes)}")
    return nodes


def _client_number(reply: Message, clients: int) -> int:
    """The client number that a node says it has."""
    node = reply.metadata.src_node_id
    if reply.has_error():
        raise FederationFailed(f"node {node}: {printable_line(reply.error.reason)}")
    try:
        client = int(read_reply_words(reply.content, {"client": int, "order": str})["client"])
    except BadReply as bad:
        raise FederationFailed(f"node {node}: {bad}") from None
    if not 0 <= client < clients:
        raise FederationFailed(
            f"node {node} says that it is client {client}; there are clients 0 to {clients - 1}"
        )
    return client


def run_on_grid(
    experiment: Experiment,
    grid: Grid,
    folder: RunFolder,
    timeout: float = 3600.0,
    patience: float = 60.0,
    rules: ReplyRules = STOP_RULES,
) -> Progress:
    """All rounds on real clients, from the last checkpoint in ``folder`` -> the state after the
    last.

    timeout: seconds for one round; patience: seconds until all clients must have joined; rules:
        what is done about a reply that cannot be used. Raises FederationFailed for a missing
        client, for a reply that cannot be used where
    ``rules`` say stop, and for a client that keeps to itself an accuracy that only it knows. The
    folder then goes on where the last round ended.
    """
    plan = experiment.plan
    engine = GridEngine(grid, find_clients(grid, plan.problem.clients, patience), timeout, rules)
    ledger = experiment.new_ledger()
    capture = experiment.capture
    # the server never touches the shards: tasks are run where the data is
    shards = experiment.shards
    test = experiment.test_records
    trainer = Trainer(
        plan,
        shards,
        test,
        engine,  # type: ignore[arg-type]
        folder,
        ledger,
        capture,
        engine.collect_accuracy,  # type: ignore[arg-type]
        budget=experiment.privacy.budget,
    )
    with lock_folder(folder.path):
        return trainer.run()

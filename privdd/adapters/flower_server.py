"""The server's side of a real federation: rounds on the clients of a Flower grid, and what it makes of their replies.

A reply is believed only as far as it can be checked: ``reply_check`` holds it to the plan and writes the ledger's rows.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flwr.app import Message
from flwr.serverapp import Grid

from privdd.adapters.flower_messages import BadReply, FederationFailed, one_line, records, words_of
from privdd.adapters.rehearsal import Expected, Rehearsals
from privdd.adapters.reply_check import ReplyRules, checked
from privdd.core.state import flat
from privdd.core.types import Received, Records, Shard, State
from privdd.federated.channel import digest
from privdd.federated.dropped import Dropped, dropped_rows
from privdd.federated.experiment import Experiment
from privdd.federated.measured import accuracy
from privdd.federated.simulation import Plan, Progress, Task
from privdd.federated.trainer import Trainer
from privdd.privacy.mechanism import Row
from privdd.runtime.lock import locked
from privdd.runtime.run_folder import RunFolder

LOG = logging.getLogger("privdd")
Result = tuple[Received | Dropped, list[Row], State]
NOTHING = Expected({}, (), 0)
STOP = ReplyRules()


@dataclass(frozen=True)
class GridEngine:
    """Runs a round's tasks on the clients of a Flower grid. timeout: seconds for one round."""

    grid: Grid
    nodes: Mapping[int, int]  # client -> Flower's node
    timeout: float = 3600.0
    rules: ReplyRules = STOP
    rehearsals: Rehearsals = field(default_factory=Rehearsals)
    clients_remember: ClassVar[bool] = True  # only such an engine may go on from a checkpoint without memories

    def map(self, fn: Callable[..., Any], tasks: Iterable[Task]) -> Iterator[Result]:
        """Results in the order of the tasks, once every reply has been checked.

        Raises FederationFailed where a client does not answer or its reply cannot be used; under
        ``bad_reply=drop`` only where no reply of the round can be used.
        """
        work = list(tasks)
        sent = {t.client: flat(t.broadcast) for t in work}
        asked = [
            Message(
                records(sent[t.client], round=t.round, remembers=int(bool(t.memory))),
                self.nodes[t.client],
                "train",
                group_id=str(t.round),
            )
            for t in work
        ]
        replies = self._replies(asked)
        marks: dict[int, str] = {}  # by identity: the clients of a round are sent the same
        results = []
        for task in work:
            mark = marks.setdefault(id(task.broadcast), digest(sent[task.client]))
            results.append(self._result(task, replies[task.client], mark))
        if all(isinstance(received, Dropped) for received, *_ in results):
            raise FederationFailed(f"round {work[0].round}: no client's reply can be used; {results[-1][1][-1].why}")
        yield from results

    def accuracy(self, plan: Plan, progress: Progress, test: Records, shards: Sequence[Shard]) -> float:
        """As a simulation has it; where each client predicts with its own memory, the mean of what they tell.

        Asked are the clients that took part; they are sent what they would be sent next, and no more.
        Raises FederationFailed where one does not answer or keeps its accuracy to itself; what it tells that is no
        accuracy is left out of the mean under ``bad_reply=drop``.
        """
        if plan.method.accuracy_kind == "global":
            return accuracy(plan, progress, test, shards)
        sent, group = flat(plan.method.broadcast(progress.server)), str(progress.round)
        clients = sorted(progress.memories)
        asked = [Message(records(sent, remembers=1), self.nodes[k], "evaluate", group_id=group) for k in clients]
        replies, values = self._replies(asked), []
        for client in clients:
            if not replies[client]:
                raise FederationFailed(
                    f"client {client} did not tell its accuracy after round {progress.round - 1}; resume when it is back"
                )
            try:
                values.extend(_told(plan, client, replies[client]))
            except BadReply as bad:
                self._stop_or_warn(f"client {client} (node {self.nodes[client]}), accuracy: {bad}")
        return sum(values) / len(values) if values else 0.0

    def _replies(self, messages: Sequence[Message]) -> dict[int, list[Message]]:
        """client -> its replies, told apart by the node that they came from, whatever they say."""
        clients = {node: client for client, node in self.nodes.items()}
        found: dict[int, list[Message]] = {client: [] for client in self.nodes}
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            node = reply.metadata.src_node_id
            if node in clients:
                found[clients[node]].append(reply)
            else:
                LOG.warning("node %d answers without having been asked; it is not listened to", node)
        return found

    def _result(self, task: Task, replies: Sequence[Message], mark: str) -> Result:
        planned = NOTHING
        try:
            if replies and replies[0].has_error():
                raise BadReply(f"failed: {replies[0].error.reason}")  # its text is all that it sent
            planned = self.rehearsals.of(task)
            return self._checked(task, replies, planned, mark)
        except BadReply as bad:
            line = f"client {task.client} (node {self.nodes[task.client]}), round {task.round}: {bad}"
            if not replies:
                line = f"client {task.client} did not answer in round {task.round}; resume when it is back"
            self._stop_or_warn(line)
            gone = Dropped(task.client, task.round)
            rows = dropped_rows(planned.rows, task.plan.method.uploads, gone, line, uncovered=bad.uncovered)
            return gone, rows, {}

    def _checked(self, task: Task, replies: Sequence[Message], planned: Expected, mark: str) -> Result:
        if len(replies) != 1:
            raise BadReply(f"answered {len(replies)} times", uncovered=len(replies) > 1)
        try:
            return checked(task, replies[0], planned, mark, self.rules)
        except BadReply:  # a rehearsal of a round like this one may not do for this one
            return checked(task, replies[0], self.rehearsals.of(task, anew=True), mark, self.rules)

    def _stop_or_warn(self, line: str) -> None:
        if self.rules.bad_reply == "stop":
            raise FederationFailed(line) from None
        LOG.warning("%s; the round goes on without it", line)


def _told(plan: Plan, client: int, replies: Sequence[Message]) -> list[float]:
    """What a client says of its accuracy: one number, or none where it has nothing to measure."""
    if len(replies) != 1 or replies[0].has_error():
        raise BadReply(f"failed: {replies[0].error.reason}" if replies[0].has_error() else "answered more than once")
    content = replies[0].content
    told = "words" in content.config_records and "accuracy" in content.config_records["words"]
    words = words_of(content, {"client": int, "refuses": int, "order": str, **({"accuracy": float} if told else {})})
    if words["client"] != client:
        raise BadReply(f"answers as client {words['client']}")
    if words["refuses"]:
        name = type(plan.method).__name__
        raise FederationFailed(
            f"client {client}: {name} is measured at the clients, which takes client_app(own, tells_accuracy=True)"
        )
    if told and not (math.isfinite(words["accuracy"]) and 0 <= words["accuracy"] <= 1):
        raise BadReply(f"accuracy={words['accuracy']!r}: a number from 0 to 1 is needed")
    return [words["accuracy"]] if told else []


def find_clients(grid: Grid, clients: int, timeout: float = 60.0) -> dict[int, int]:
    """client -> node, once ``clients`` nodes are there.

    Raises FederationFailed where some stay away ``timeout`` s, and where a node says no client's number or another's.
    """
    deadline = time.monotonic() + timeout
    while len(list(grid.get_node_ids())) < clients and time.monotonic() < deadline:
        time.sleep(min(0.5, timeout / 10))
    nodes: dict[int, int] = {}
    for reply in grid.send_and_receive(
        [Message(records({}), n, "query") for n in grid.get_node_ids()], timeout=timeout
    ):
        client, node = _number_of(reply, clients), reply.metadata.src_node_id
        if nodes.setdefault(client, node) != node:
            raise FederationFailed(f"nodes {nodes[client]} and {node} both say that they are client {client}")
    missing = sorted(set(range(clients)) - set(nodes))
    if missing:
        raise FederationFailed(f"clients {missing} of {clients} have no node; found {len(nodes)}")
    return nodes


def _number_of(reply: Message, clients: int) -> int:
    """The client number that a node says it has."""
    node = reply.metadata.src_node_id
    if reply.has_error():
        raise FederationFailed(f"node {node}: {one_line(reply.error.reason)}")
    try:
        client = int(words_of(reply.content, {"client": int, "order": str})["client"])
    except BadReply as bad:
        raise FederationFailed(f"node {node}: {bad}") from None
    if not 0 <= client < clients:
        raise FederationFailed(f"node {node} says that it is client {client}; there are clients 0 to {clients - 1}")
    return client


def federate(
    experiment: Experiment,
    grid: Grid,
    folder: RunFolder,
    timeout: float = 3600.0,
    patience: float = 60.0,
    rules: ReplyRules = STOP,
) -> Progress:
    """All rounds on real clients, from the last checkpoint in ``folder`` -> the state after the last.

    timeout: seconds for one round; patience: seconds until all clients must have joined; rules: what is done about
    a reply that cannot be used.

    Raises FederationFailed for a missing client, for a reply that cannot be used where ``rules`` say stop, and for a
    client that keeps to itself an accuracy that only it knows. The folder then goes on where the last round ended.
    """
    plan = experiment.plan
    engine = GridEngine(grid, find_clients(grid, plan.problem.clients, patience), timeout, rules)
    ledger, capture = experiment.ledger(), experiment.capture
    # the server never touches the shards: tasks are run where the data is
    trainer = Trainer(
        plan,
        experiment.shards,
        experiment.test,
        engine,  # type: ignore[arg-type]
        folder,
        ledger,
        capture,
        engine.accuracy,  # type: ignore[arg-type]
    )
    with locked(folder.path):
        return trainer.run()

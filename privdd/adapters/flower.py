"""A real federation on Flower: any method's ``local`` in a ClientApp, its ``aggregate`` in a ServerApp.

The client runs the channel, so mechanisms, noise and ledger rows are made where the data is; only what
the channel lets out, and its ledger rows, travel. Client memory stays in Flower's client state, beside the
latest reply: asked for that round again, a client sends the same reply, never another draw of its noise.
Flower keeps that state for one series of runs, so a federation goes on in the series that it began in. A method
whose accuracy is that of each client's own model is measured where that model is. The server runs the
same rounds as a simulation, with a ``GridEngine`` in the place of the task engine, and leaves a run folder
that ``python -m privdd.audit run=DIR`` attacks, where the audited client's records are at hand. Needs the
extra ``privdd[flower]``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from privdd.auditing.pipeline import game_of
from privdd.core.state import flat, mark, nested
from privdd.core.types import Received, Records, Shard, State, Tensors
from privdd.federated.channel import digest
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Plan, Progress, Task, accuracy, client_step, predict_in_batches
from privdd.federated.trainer import Trainer
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import Row
from privdd.runtime.run_folder import RunFolder

LOG = logging.getLogger("privdd")
Own = Callable[[Context], tuple[Plan, Ledger, Shard]]  # what one client knows: the plan, and its own data


class FederationFailed(ValueError):
    """A client is missing, answered with an error, or answered something else."""


def _records(values: State, **words: str | int | float) -> RecordDict:
    """Tensors and words as one message; the order of names travels with them."""
    return RecordDict(
        {
            "tensors": ArrayRecord(values),
            "words": ConfigRecord({**words, "order": json.dumps(list(values))}),
        }
    )


def _tensors(content: RecordDict, part: str = "") -> State:
    stored = content.array_records[f"{part}tensors"].to_torch_state_dict()
    return {name: stored[name] for name in json.loads(str(content.config_records[f"{part}words"]["order"]))}


def own_data(experiment: Experiment, client: int) -> Shard:
    """The shard of one client, as an audited simulation trains on it (the audited client's after its coin flips)."""
    shard = experiment.shards[client]
    audited = experiment.auditing is not None and client == experiment.plan.victim
    return game_of(experiment).shard(shard, 0) if audited else shard


def client_app(own: Own, *, tells_accuracy: bool = False, simulation: bool = False) -> ClientApp:
    """A ClientApp that answers ``query`` with its client number and ``train`` with one round's upload.

    own: from Flower's context (its node_config names the client) to plan, an empty ledger and the shard.
    tells_accuracy: answers ``evaluate`` with the accuracy of its own model on its own test split, which
    personal methods need. That number leaves the client outside the channel: no ledger row covers it, so
    it is for studies, and a guarantee holds for everything else.
    simulation: the data is nobody's, so noise may be drawn from the seed. Everyone who takes part knows the seed: a
    real client draws its noise from the operating system or from a secret of its own, or answers with an error.
    """
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        return Message(_records({}, client=own(context)[2].client), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        plan, ledger, shard = own(context)
        words, tensors = message.content.config_records["words"], _tensors(message.content)
        round, asked = int(words["round"]), digest(tensors)  # type: ignore[arg-type]
        sent = _sent_before(context, shard.client, round, asked)
        if sent is None:
            _check_noise(plan, simulation)
            memory = _remembered(context, shard.client, bool(words["remembers"]))
            received, rows, memory = _step(Task(plan, round, shard.client, nested(tensors), memory, shard))
            ledger.append(rows)
            sent = _records(
                flat(received.values),
                client=shard.client,
                round=received.round,
                rows=json.dumps(ledger.to_json()),
                remembers=int(bool(memory)),
            )
            _remember(context, memory, sent, round=round, asked=asked)
        return Message(sent, reply_to=message)

    @app.evaluate()
    def judge(message: Message, context: Context) -> Message:
        plan, _, shard = own(context)
        told = {}
        if tells_accuracy:
            memory = _remembered(context, shard.client, bool(message.content.config_records["words"]["remembers"]))
            told = _own_accuracy(plan, _tensors(message.content), memory, shard.test)
        return Message(_records({}, client=shard.client, refuses=int(not tells_accuracy), **told), reply_to=message)

    return app


def _check_noise(plan: Plan, simulation: bool) -> None:
    """Raises FederationFailed where the noise could be drawn again by the server, or cannot be drawn at all."""
    if not plan.mechanisms:
        return
    if plan.noise_source == "seed" and not simulation:
        raise FederationFailed(
            "privacy.noise_source=seed: who takes part knows the seed and can take the noise off again; allowed are "
            "secret and os, and seed in a study: client_app(own, simulation=True)"
        )
    if plan.noise_source == "secret" and not plan.keys.secret:
        raise FederationFailed("privacy.noise_source=secret: this client has no secret (PRIVDD_SECRET)")


def _step(task: Task) -> tuple[Received, list[Row], State]:
    """The client's round. Raises FederationFailed without the cause, for Flower sends the text of an exception."""
    try:
        return client_step(task)
    except Exception:
        LOG.exception("client %d, round %d", task.client, task.round)
        raise FederationFailed(f"client {task.client} failed in round {task.round}; its own log says why") from None


def _own_accuracy(plan: Plan, broadcast: State, memory: State, test: Records) -> dict[str, float]:
    """{"accuracy": 0..1} on the client's test split; empty where there is no model or no test record."""
    if not memory or not len(test):
        return {}
    logits = predict_in_batches(lambda x: plan.method.predict(broadcast, memory, x), test.x)
    return {"accuracy": float((logits.argmax(1) == test.y).float().mean())}


def _sent_before(context: Context, client: int, round: int, asked: str) -> RecordDict | None:
    """The reply of the latest round where that round is asked for again, after a server that stopped.

    Sent twice it tells nothing new; worked out again it would release noise that no ledger counts.
    asked: digest of the broadcast. Raises FederationFailed for an earlier round, and for another broadcast.
    """
    latest = context.state.config_records.get("latest")
    if latest is None or int(latest["round"]) < round:  # type: ignore[arg-type]
        return None
    if latest["round"] != round:
        at = int(latest["round"])  # type: ignore[arg-type]
        raise FederationFailed(f"client {client} remembers round {at} and cannot repeat round {round}")
    if latest["asked"] != asked:
        raise FederationFailed(f"client {client} answered round {round} already, to another broadcast")
    return RecordDict({part: context.state[f"reply {part}"] for part in ("tensors", "words")})


def _remembered(context: Context, client: int, expected: bool) -> State:
    """What the client keeps. Raises FederationFailed where the server knows of a memory and there is none."""
    memory = _tensors(context.state) if "tensors" in context.state else {}
    if expected and not memory:
        raise FederationFailed(f"client {client} has lost its memory of earlier rounds; go on in the same run series")
    return memory


def _remember(context: Context, memory: State, sent: RecordDict, **latest: int | str) -> None:
    """Keep the memory and the latest reply, in the place of the one before."""
    for name, record in _records(memory).items():
        context.state[name] = record
    for name, record in sent.items():
        context.state[f"reply {name}"] = record
    context.state["latest"] = ConfigRecord({**latest})


@dataclass(frozen=True)
class GridEngine:
    """Runs a round's tasks on the clients of a Flower grid. timeout: seconds for one round."""

    grid: Grid
    nodes: Mapping[int, int]  # client -> Flower's node
    timeout: float = 3600.0
    clients_remember: ClassVar[bool] = True  # only such an engine may go on from a checkpoint without memories

    def map(self, fn: Callable[..., Any], tasks: Iterable[Task]) -> Iterator[tuple[Received, list[Row], State]]:
        """Results in the order of the tasks. Raises FederationFailed where a client does not answer."""
        work = list(tasks)
        asked = [Message(_asked(t), self.nodes[t.client], "train", group_id=str(t.round)) for t in work]
        answers = dict(_answered(self.grid, asked, self.timeout))
        for task in work:
            if task.client not in answers:
                raise FederationFailed(
                    f"client {task.client} did not answer in round {task.round}; resume when it is back"
                )
            yield _step_result(task, answers[task.client])

    def accuracy(self, plan: Plan, progress: Progress, test: Records, shards: Sequence[Shard]) -> float:
        """As a simulation has it; where each client predicts with its own memory, the mean of what they tell.

        Asked are the clients that took part; they are sent what they would be sent next, and no more.
        Raises FederationFailed where one does not answer or keeps its accuracy to itself.
        """
        if plan.method.accuracy_kind == "global":
            return accuracy(plan, progress, test, shards)
        sent, group = flat(plan.method.broadcast(progress.server)), str(progress.round)
        asked = [
            Message(_records(sent, remembers=1), self.nodes[k], "evaluate", group_id=group)
            for k in sorted(progress.memories)
        ]
        answers = {k: r.content.config_records["words"] for k, r in _answered(self.grid, asked, self.timeout)}
        for client in sorted(progress.memories):
            if client not in answers:
                raise FederationFailed(
                    f"client {client} did not tell its accuracy after round {progress.round - 1}; resume when it is back"
                )
            if answers[client]["refuses"]:
                name = type(plan.method).__name__
                raise FederationFailed(
                    f"client {client}: {name} is measured at the clients, which takes client_app(own, tells_accuracy=True)"
                )
        values = [float(answers[k]["accuracy"]) for k in sorted(answers) if "accuracy" in answers[k]]  # type: ignore[arg-type]
        return sum(values) / len(values) if values else 0.0


def _answered(grid: Grid, messages: Sequence[Message], timeout: float) -> Iterator[tuple[int, Message]]:
    for reply in grid.send_and_receive(messages, timeout=timeout):
        if reply.has_error():
            raise FederationFailed(
                f"node {reply.metadata.src_node_id}: {' '.join(str(reply.error.reason).split())[:200]}"
            )
        yield int(reply.content.config_records["words"]["client"]), reply  # type: ignore[arg-type]


def _asked(task: Task) -> RecordDict:
    """The broadcast, the round, and whether the server knows that the client has a memory of earlier rounds."""
    return _records(flat(task.broadcast), round=task.round, remembers=int(bool(task.memory)))


def _step_result(task: Task, reply: Message) -> tuple[Received, list[Row], State]:
    words = reply.content.config_records["words"]
    if words["round"] != task.round:
        raise FederationFailed(f"client {task.client} answered round {int(words['round'])}, asked for {task.round}")  # type: ignore[arg-type]
    releases = Ledger.from_json(str(words["rows"])).releases
    rows = [Row(**{f.name: getattr(release, f.name) for f in fields(Row)}) for release in releases]
    # the server learns that a client remembers something (replays must then start at its first round),
    # never what
    memory = mark() if words["remembers"] else {}
    values: Mapping[str, Tensors] = nested(_tensors(reply.content))
    return Received(task.client, task.round, values), rows, memory


def find_clients(grid: Grid, clients: int, timeout: float = 60.0) -> dict[int, int]:
    """client -> node, once ``clients`` nodes are there. Raises FederationFailed where some stay away ``timeout`` s."""
    deadline = time.monotonic() + timeout
    while len(list(grid.get_node_ids())) < clients and time.monotonic() < deadline:
        time.sleep(min(0.5, timeout / 10))
    asked = [Message(_records({}), node, "query") for node in grid.get_node_ids()]
    nodes = {client: reply.metadata.src_node_id for client, reply in _answered(grid, asked, timeout)}
    missing = sorted(set(range(clients)) - set(nodes))
    if missing:
        raise FederationFailed(f"clients {missing} of {clients} have no node; found {len(nodes)}")
    return nodes


def federate(
    experiment: Experiment, grid: Grid, folder: RunFolder, timeout: float = 3600.0, patience: float = 60.0
) -> Progress:
    """All rounds on real clients, from the last checkpoint in ``folder`` -> the state after the last.

    timeout: seconds for one round; patience: seconds until all clients must have joined.

    Raises FederationFailed for a missing client, and for one that keeps to itself an accuracy that only it knows.
    """
    plan = experiment.plan
    engine = GridEngine(grid, find_clients(grid, plan.problem.clients, patience), timeout)
    ledger, capture = experiment.ledger(), experiment.capture
    # the server never touches the shards: tasks are run where the data is
    return Trainer(
        plan,
        experiment.shards,
        experiment.test,
        engine,  # type: ignore[arg-type]
        folder,
        ledger,
        capture,
        engine.accuracy,  # type: ignore[arg-type]
    ).run()

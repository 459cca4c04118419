"""A Flower grid in this process for an app of somebody else's: real strategies, a real ClientApp,
no servers."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

NODES = (11, 12, 13)


class PlainGrid(Grid):
    """Delivers a copy of every message to ``app``."""

    run = property(lambda self: None)  # type: ignore[assignment]

    def __init__(self, app: ClientApp, nodes: Iterable[int] = NODES) -> None:
        self.app = app
        self.contexts = {
            n: Context(1, n, {"partition-id": k}, RecordDict(), {}) for k, n in enumerate(nodes)
        }
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 0
        TaskIdentity.task_id = 1

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in sorted(
            messages, key=lambda m: m.metadata.dst_node_id
        ):  # sampled in any order, which a sum of floats shows
            node = message.metadata.dst_node_id
            reply = self.app(copy.deepcopy(message), self.contexts[node])
            reply.metadata._src_node_id = node
            replies.append(reply)
        yield from replies  # as from a network: can be read once

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def set_run(self, run: object) -> None: ...

    def create_message(self, *args: object, **more: object) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def client(*mods: Any, greedy: bool = False) -> ClientApp:
    """The quickstart pattern with numpy for a network: a step that depends on model, client and
    round, and metrics.

    greedy: it takes the arrays out of the message that it gets.
    """
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        held = message.content["arrays"]
        assert isinstance(held, ArrayRecord)
        step = np.random.default_rng(
            [context.node_id, int(message.content["config"]["server-round"])]
        )  # type: ignore[index,arg-type]
        new = {
            k: a.numpy() + step.normal(size=a.numpy().shape).astype(a.numpy().dtype)
            for k, a in held.items()
        }
        for key in list(held) if greedy else ():
            held.pop(key)
        told = MetricRecord({"num-examples": context.node_id, "train_loss": float(step.random())})
        return Message(
            RecordDict(
                {
                    "arrays": ArrayRecord({k: Array(np.asarray(a)) for k, a in new.items()}),
                    "metrics": told,
                }
            ),
            reply_to=message,
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"metrics": MetricRecord({"num-examples": 5, "accuracy": 0.5})}),
            reply_to=message,
        )

    return app


def start_arrays() -> ArrayRecord:
    weight = np.linspace(-1, 1, 40, dtype=np.float32).reshape(8, 5)
    return ArrayRecord(
        {"weight": Array(weight), "bias": Array(np.zeros(5)), "steps": Array(np.array(3.0))}
    )

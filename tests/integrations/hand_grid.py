"""A Flower grid in this process whose clients' replies may be altered on their way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from privdd.core.types import Shard
from privdd.federated.experiment import Experiment
from privdd.integrations.flower import client_app

Alter = Callable[[Message], Any]  # changes a reply in place, or gives others in its place (a list)


class AlteringGrid:
    """Node ids are 100 + client. bad: (kind, client, group) of the replies that ``alter``
    changes."""

    def __init__(
        self,
        experiment: Experiment,
        alter: Alter = lambda reply: None,
        bad: tuple[str, int, str] = ("train", 1, "1"),
        shards: Sequence[Shard] | None = None,
    ) -> None:
        held = experiment.shards if shards is None else shards
        self.contexts = {
            100 + k: Context(1, 100 + k, {"partition-id": k}, RecordDict(), {})
            for k in range(len(held))
        }

        def own(context):
            return (
                experiment.plan,
                experiment.new_ledger(),
                held[context.node_config["partition-id"]],
            )

        self.app = client_app(own, tells_accuracy=True, simulation=True)
        self.alter = alter
        self.bad = bad
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 0
        TaskIdentity.task_id = 1

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            meta = message.metadata
            reply = self.app(message, self.contexts[node])
            reply.metadata._src_node_id = node
            altered = None
            if (meta.message_type, node - 100, meta.group_id) == self.bad:
                altered = self.alter(reply)
            replies.extend([reply] if altered is None else altered)
        return replies

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)


def words(reply: Message, **changed: Any) -> None:
    """Change some words of a reply; None takes one away."""
    mixed = {**reply.content.config_records["words"], **changed}
    reply.content["words"] = ConfigRecord({k: v for k, v in mixed.items() if v is not None})


def arrays(
    reply: Message, change: Callable[[dict[str, torch.Tensor]], Any], *, order: bool = True
) -> None:
    """Change the tensors of a reply, and with ``order`` the names that it states."""
    held = dict(reply.content.array_records["tensors"].to_torch_state_dict())
    held = {
        name: held[name].clone()
        for name in json.loads(str(reply.content.config_records["words"]["order"]))
    }
    held = change(held) or held
    reply.content["tensors"] = ArrayRecord(held)
    if order:
        words(reply, order=json.dumps(list(held)))


def rows(reply: Message, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Change the ledger rows of a reply."""
    stated = json.loads(str(reply.content.config_records["words"]["rows"]))
    stated["releases"] = change(stated["releases"]) or stated["releases"]
    words(reply, rows=json.dumps(stated))

"""Flower's apps carry any method: same model, same ledger, same artifacts as the simulated run.

A grid in this process passes the messages on by hand, serialised as Flower serialises them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from privdd.adapters.flower import FederationFailed, client_app, federate, own_data
from privdd.assembly import Experiment, assemble
from privdd.auditing import game_of
from privdd.config import composed
from privdd.core import Shard
from privdd.federation import Plan, Progress
from privdd.ledger import Ledger
from privdd.store import RunFolder
from privdd.training import Trainer

SMALL = ["preset=smoke", "partition.clients=3", "data.limit=200", "model=mlp", "algo.local_epochs=1", "algo.rounds=2"]
METHODS = {
    "fedavg": ["algo=fedavg"],
    "dpsgd": ["algo=fedavg", "privacy=dpsgd", "privacy.delta=1e-3"],
    "scaffold": ["algo=scaffold", "participation=0.67"],
}


class HandGrid(Grid):
    """Delivers every message in this process; node ids are 100 + client."""

    def __init__(self, experiment: Experiment, gone: int | None = None) -> None:
        self.experiment, self.gone = experiment, gone
        self.app = client_app(self.own)
        clients = range(experiment.plan.problem.clients)
        self.contexts = {100 + k: Context(1, 100 + k, {"partition-id": k}, RecordDict(), {}) for k in clients}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1

    def own(self, context: Context) -> tuple[Plan, Ledger, Shard]:
        shard = own_data(self.experiment, int(context.node_config["partition-id"]))
        return self.experiment.plan, self.experiment.ledger(), shard

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node - 100 != self.gone or message.metadata.message_type != "train":
                reply = self.app(message, self.contexts[node])
                reply.metadata._src_node_id = node
                replies.append(reply)
        return reversed(replies)  # answers arrive in any order

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def set_run(self, run: object) -> None: ...

    run = property(lambda self: None)  # type: ignore[assignment]

    def create_message(self, *args: object, **more: object) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def simulated(experiment: Experiment, folder: RunFolder) -> Progress:
    shards, victim = list(experiment.shards), experiment.plan.victim
    shards[victim] = game_of(experiment).shard(shards[victim], 0)
    return Trainer(
        experiment.plan, shards, experiment.test, experiment.engine, folder, experiment.ledger(), experiment.capture
    ).run()


@pytest.mark.parametrize("name", METHODS)
def test_a_federation_equals_its_simulation(name: str, tmp_path: Path) -> None:
    experiment = assemble(composed("audit", [*SMALL, *METHODS[name]]))
    expected = simulated(experiment, RunFolder(tmp_path / "simulated"))
    found = federate(experiment, HandGrid(experiment), RunFolder(tmp_path / "flower"))
    assert found.ledger.to_json() == expected.ledger.to_json() and len(found.ledger) > 4
    assert found.accuracy == expected.accuracy and found.uploaded == expected.uploaded
    assert all(torch.equal(found.server[k], v) for k, v in expected.server.items())
    files = sorted(p.relative_to(tmp_path / "simulated") for p in (tmp_path / "simulated" / "artifacts").rglob("*.safetensors"))
    assert files and all((tmp_path / "flower" / f).read_bytes() == (tmp_path / "simulated" / f).read_bytes() for f in files)
    assert set(found.snapshots) == set(expected.snapshots)


def test_memory_and_data_stay_with_the_client(tmp_path: Path) -> None:
    experiment = assemble(composed("audit", [*SMALL, "algo=scaffold"]))
    grid = HandGrid(experiment)
    found = federate(experiment, grid, RunFolder(tmp_path))
    assert all(set(memory) == {"remembered"} for memory in found.memories.values())
    assert all("tensors" in context.state for context in grid.contexts.values())


def test_a_client_that_does_not_answer_is_named(tmp_path: Path) -> None:
    experiment = assemble(composed("audit", SMALL))
    with pytest.raises(FederationFailed, match="client 1 did not answer in round 0"):
        federate(experiment, HandGrid(experiment, gone=1), RunFolder(tmp_path))


def test_a_missing_node_is_named(tmp_path: Path) -> None:
    experiment = assemble(composed("audit", SMALL))
    grid = HandGrid(experiment)
    del grid.contexts[102]
    with pytest.raises(FederationFailed, match=r"clients \[2\] of 3 have no node"):
        federate(experiment, grid, RunFolder(tmp_path), patience=0.2)


def test_personal_methods_are_refused(tmp_path: Path) -> None:
    experiment = assemble(composed("audit", [*SMALL[:-2], "algo=fedproto", "algo.rounds=2"]))
    with pytest.raises(FederationFailed, match="FedProto predicts with each client's memory"):
        federate(experiment, HandGrid(experiment), RunFolder(tmp_path))

"""Flower's apps carry any method: same model, same ledger, same artifacts as the simulated run.

A grid in this process passes the messages on by hand, serialised as Flower serialises them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from privdd.auditing.findings import findings_json
from privdd.auditing.pipeline import audit_experiment, membership_game_of
from privdd.auditing.replay import restore_memories
from privdd.cli.build import build_attacks, build_experiment
from privdd.cli.compose import compose_config
from privdd.cli.run import prepare_run_folder
from privdd.cli.stored_config import load_stored_config
from privdd.core.types import Shard, nest_values
from privdd.federated.channel import digest_tensors
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Plan, Progress
from privdd.federated.trainer import Trainer
from privdd.integrations.flower import client_app, client_shard, run_on_grid
from privdd.integrations.reply_check import FederationFailed
from privdd.privacy.ledger import Ledger
from privdd.runtime.run_folder import RunFolder

SMALL = [
    "preset=smoke",
    "partition.clients=3",
    "data.limit=200",
    "model=mlp",
    "algo.local_epochs=1",
    "algo.rounds=2",
]
METHODS = {
    "fedavg": ["algo=fedavg"],
    "dpsgd": ["algo=fedavg", "privacy=dpsgd", "privacy.delta=1e-3"],
    "scaffold": ["algo=scaffold", "participation=0.67"],
}
AUDITED = {
    "fedavg with batch norm": ["algo=fedavg", "model=smallcnn", "model.norm=batch"],
    "dpsgd": METHODS["dpsgd"],
    "scaffold": METHODS["scaffold"],  # control variates are remembered
    "fedproto": ["algo=fedproto"],  # and so are models that never travel
    "fedrd": ["algo=fedrd", "algo.matching.iterations=2", "algo.dpc=2"],
    "fedlgd": ["algo=fedlgd"],
}
LIGHT = [
    "attack=[lira,label_counts,copy_detection,feature_inversion]",
    "audit.records=16",
    "audit.worlds=4",
    "audit.victims=1",
    "audit.guarantee.runs=20",
    "attack.feature_inversion.limit=2",
    "attack.feature_inversion.decoder.steps=5",
    "attack.feature_inversion.whitebox.iterations=5",
    *(
        f"audit.waive.{name}=beside_the_point"
        for name in ("global_model", "prototypes", "labels", "counts", "statistics")
    ),
]


def fresh(client: int) -> Context:
    """A client's state in a new series of runs."""
    return Context(1, 100 + client, {"partition-id": client}, RecordDict(), {})


class HandGrid(Grid):
    """Delivers every message in this process; node ids are 100 + client.

    gone: a client that does not answer ``away``, a kind of message and, if it has one, its group.
    log: every answer to train and evaluate, as (kind, client, group, its record of arrays).
    """

    def __init__(
        self,
        experiment: Experiment,
        gone: int | None = None,
        tells_accuracy: bool = True,
        away: tuple[str, ...] = ("train",),
    ) -> None:
        self.experiment = experiment
        self.gone = gone
        self.away = away
        self.log: list[tuple[str, int, str, dict[str, torch.Tensor]]] = []
        self.app = client_app(self.own, tells_accuracy=tells_accuracy, simulation=True)
        self.contexts = {100 + k: fresh(k) for k in range(experiment.plan.problem.clients)}
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 0
        TaskIdentity.task_id = 1

    def own(self, context: Context) -> tuple[Plan, Ledger, Shard]:
        shard = client_shard(self.experiment, int(context.node_config["partition-id"]))
        return self.experiment.plan, self.experiment.new_ledger(), shard

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            meta = message.metadata
            asked = (meta.message_type, meta.group_id)
            if node - 100 != self.gone or asked[: len(self.away)] != self.away:
                reply = self.app(message, self.contexts[node])
                reply.metadata._src_node_id = node
                replies.append(reply)
                self.log.append(
                    (
                        asked[0],
                        node - 100,
                        asked[1],
                        reply.content.array_records["tensors"].to_torch_state_dict(),
                    )
                )
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
    shards = list(experiment.shards)
    victim = experiment.plan.victim
    shards[victim] = membership_game_of(experiment).shard_of_replay(shards[victim], 0)
    return Trainer(
        experiment.plan,
        shards,
        experiment.test_records,
        experiment.engine,
        folder,
        experiment.new_ledger(),
        experiment.capture,
    ).run()


@pytest.mark.nightly(but=["fedavg"])
@pytest.mark.parametrize("name", METHODS)
def test_a_federation_equals_its_simulation(name: str, tmp_path: Path) -> None:
    experiment = build_experiment(compose_config("audit", [*SMALL, *METHODS[name]]))
    expected = simulated(experiment, RunFolder(tmp_path / "simulated"))
    found = run_on_grid(experiment, HandGrid(experiment), RunFolder(tmp_path / "flower"))
    assert found.ledger.to_json() == expected.ledger.to_json() and len(found.ledger) > 4
    assert found.accuracy == expected.accuracy and found.uploaded == expected.uploaded
    assert all(torch.equal(found.server[k], v) for k, v in expected.server.items())
    files = sorted(
        p.relative_to(tmp_path / "simulated")
        for p in (tmp_path / "simulated" / "artifacts").rglob("*.safetensors")
    )
    assert files and all(
        (tmp_path / "flower" / f).read_bytes() == (tmp_path / "simulated" / f).read_bytes()
        for f in files
    )
    assert set(found.snapshots) == set(expected.snapshots)


def test_memory_and_data_stay_with_the_client(tmp_path: Path) -> None:
    experiment = build_experiment(compose_config("audit", [*SMALL, "algo=scaffold"]))
    grid = HandGrid(experiment)
    found = run_on_grid(experiment, grid, RunFolder(tmp_path))
    assert all(set(memory) == {"remembered"} for memory in found.memories.values())
    assert all("tensors" in context.state for context in grid.contexts.values())


def test_a_client_that_does_not_answer_is_named(tmp_path: Path) -> None:
    experiment = build_experiment(compose_config("audit", SMALL))
    with pytest.raises(FederationFailed, match="client 1 did not answer in round 0"):
        run_on_grid(experiment, HandGrid(experiment, gone=1), RunFolder(tmp_path))


def test_a_missing_node_is_named(tmp_path: Path) -> None:
    experiment = build_experiment(compose_config("audit", SMALL))
    grid = HandGrid(experiment)
    del grid.contexts[102]
    with pytest.raises(FederationFailed, match=r"clients \[2\] of 3 have no node"):
        run_on_grid(experiment, grid, RunFolder(tmp_path), patience=0.2)


def result(config: Any, folder: RunFolder) -> dict[str, Any]:
    """findings.json of a run, without what a clock wrote."""
    experiment = build_experiment(config)
    found = findings_json(audit_experiment(experiment, build_attacks(config), folder))
    del found["run"]["seconds"]
    return {
        **found,
        "findings": [{k: v for k, v in row.items() if k != "seconds"} for row in found["findings"]],
    }


@pytest.mark.nightly(but=["scaffold"])
@pytest.mark.parametrize("name", AUDITED)
def test_an_audit_of_a_deployment_finds_what_the_simulated_one_finds(
    name: str, tmp_path: Path
) -> None:
    config = compose_config("audit", [*SMALL[:-2], *AUDITED[name], *_rounds(AUDITED[name]), *LIGHT])
    expected = result(config, RunFolder(tmp_path / "simulated"))
    experiment = build_experiment(config)
    run_on_grid(experiment, HandGrid(experiment), prepare_run_folder(tmp_path / "flower", config))
    found = result(load_stored_config(tmp_path / "flower"), RunFolder(tmp_path / "flower"))
    assert found == expected and len(found["findings"]) > 1 and found["utility"]["accuracy"] > 0


def _rounds(overrides: list[str]) -> list[str]:
    return (
        ["algo.rounds=2"]
        if "algo=fedlgd" in overrides or "algo=fedrd" in overrides
        else ["algo.local_epochs=1", "algo.rounds=2"]
    )


def test_a_federation_that_stopped_goes_on_with_its_clients_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose_config(
        "audit", [*SMALL[:-2], "algo=scaffold", "algo.local_epochs=1", "algo.rounds=3"]
    )
    whole = build_experiment(config)
    experiment = build_experiment(config)
    expected = run_on_grid(whole, HandGrid(whole), RunFolder(tmp_path / "whole"))
    folder = RunFolder(tmp_path / "stopped")
    grid = HandGrid(experiment)
    monkeypatch.setattr("privdd.federated.trainer.CHECKPOINT_EVERY", 0.0)
    grid.gone = 1
    grid.away = ("train", "2")
    with pytest.raises(FederationFailed, match="client 1 did not answer in round 2"):
        run_on_grid(experiment, grid, folder)
    with pytest.raises(ValueError, match="stopped after round 1 of a real federation"):
        simulated(experiment, folder)
    monkeypatch.undo()
    grid.gone = None
    found = run_on_grid(experiment, grid, folder)
    assert (
        found.ledger.to_json() == expected.ledger.to_json() and found.accuracy == expected.accuracy
    )
    with pytest.raises(
        FederationFailed, match="client 0 remembers round 2 and cannot repeat round 1"
    ):
        list(
            grid.send_and_receive(
                [
                    Message(
                        RecordDict(
                            {
                                "words": ConfigRecord({"round": 1, "order": "[]"}),
                                "tensors": ArrayRecord(),
                            }
                        ),
                        100,
                        "train",
                    )
                ]
            )
        )


def test_a_client_may_keep_its_accuracy_to_itself(tmp_path: Path) -> None:
    experiment = build_experiment(
        compose_config("audit", [*SMALL[:-2], "algo=fedproto", "algo.rounds=2"])
    )
    with pytest.raises(FederationFailed, match="client 0: FedProto is measured at the clients"):
        run_on_grid(experiment, HandGrid(experiment, tells_accuracy=False), RunFolder(tmp_path))


@pytest.mark.parametrize("algo", ["fedavg", "scaffold"])
def test_a_repeated_round_sends_the_same_noise_again(algo: str, tmp_path: Path) -> None:
    """Whatever left a client is in the ledger: noise of the operating system is never drawn twice
    for one round."""
    experiment = build_experiment(
        compose_config(
            "audit", [*SMALL, *METHODS["dpsgd"], f"algo={algo}", "privacy.noise_source=os"]
        )
    )
    grid = HandGrid(experiment, gone=1, away=("train", "1"))
    with pytest.raises(FederationFailed, match="client 1 did not answer in round 1"):
        run_on_grid(experiment, grid, RunFolder(tmp_path))
    grid.gone = None
    found = run_on_grid(experiment, grid, RunFolder(tmp_path))
    answers = [
        (k, group, nest_values(sent)) for kind, k, group, sent in grid.log if kind == "train"
    ]
    assert (
        Counter((k, group) for k, group, _ in answers)[0, "1"] == 2
    )  # the round was indeed asked for again
    left = {
        (k, int(group), name, digest_tensors(value))
        for k, group, sent in answers
        for name, value in sent.items()
    }
    booked = {
        (r.client, r.round, r.name, r.digest)
        for r in found.ledger.releases
        if "server" in r.visible_to
    }
    assert left == booked and len({mark for *_, mark in left}) >= 6
    # of one round, however many there were
    kept = {"tensors", "words", "reply tensors", "reply words", "latest"}
    assert all(set(context.state) == kept for context in grid.contexts.values())


def test_a_round_is_answered_for_one_broadcast_only(tmp_path: Path) -> None:
    experiment = build_experiment(compose_config("audit", SMALL))
    grid = HandGrid(experiment)
    run_on_grid(experiment, grid, RunFolder(tmp_path))
    other = RecordDict(
        {
            "words": ConfigRecord({"round": 1, "order": "[]", "remembers": 0}),
            "tensors": ArrayRecord(),
        }
    )
    with pytest.raises(
        FederationFailed, match="client 0 answered round 1 already, to another broadcast"
    ):
        list(grid.send_and_receive([Message(other, 100, "train")]))


@pytest.mark.parametrize("group", ["1", "2"])
def test_a_client_away_when_accuracy_is_asked_for_repeats_no_round(
    group: str, tmp_path: Path
) -> None:
    config = compose_config(
        "audit", [*SMALL[:-2], "algo=fedproto", "algo.local_epochs=1", "algo.rounds=2"]
    )
    whole = build_experiment(config)
    experiment = build_experiment(config)
    expected = run_on_grid(whole, HandGrid(whole), RunFolder(tmp_path / "whole"))
    folder = RunFolder(tmp_path / "stopped")
    grid = HandGrid(experiment, gone=1, away=("evaluate", group))
    for _ in range(2):
        with pytest.raises(
            FederationFailed,
            match=f"client 1 did not report its accuracy after round {int(group) - 1}",
        ):
            run_on_grid(experiment, grid, folder)
    with pytest.raises(
        ValueError, match=f"stopped after round {int(group) - 1} of a real federation"
    ):
        simulated(experiment, folder)
    grid.gone = None
    found = run_on_grid(experiment, grid, folder)
    assert (
        found.accuracy == expected.accuracy and found.ledger.to_json() == expected.ledger.to_json()
    )
    trained = Counter((k, round) for kind, k, round, _ in grid.log if kind == "train")
    assert len(trained) == 6 and set(trained.values()) == {1}
    undisturbed = RunFolder(tmp_path / "whole")
    assert folder.ledger_file.read_bytes() == undisturbed.ledger_file.read_bytes()
    assert folder.checkpoint_file.read_bytes() == undisturbed.checkpoint_file.read_bytes()


@pytest.mark.parametrize(
    ("algo", "away"), [("scaffold", ("train", "1")), ("fedproto", ("evaluate", "1"))]
)
def test_a_client_that_lost_its_memory_says_so(
    algo: str, away: tuple[str, str], tmp_path: Path
) -> None:
    experiment = build_experiment(
        compose_config(
            "audit", [*SMALL[:-2], f"algo={algo}", "algo.local_epochs=1", "algo.rounds=2"]
        )
    )
    grid = HandGrid(experiment, gone=1, away=away)
    with pytest.raises(FederationFailed, match="client 1 did not"):
        run_on_grid(experiment, grid, RunFolder(tmp_path))
    grid.gone, grid.contexts[101] = None, fresh(1)
    with pytest.raises(FederationFailed, match="client 1 has lost its memory of earlier rounds"):
        run_on_grid(experiment, grid, RunFolder(tmp_path))


def test_a_memory_made_with_noise_of_the_operating_system_is_not_invented(tmp_path: Path) -> None:
    config = compose_config(
        "audit", [*SMALL, "algo=scaffold", *METHODS["dpsgd"][1:], "privacy.noise_source=os"]
    )
    experiment = build_experiment(config)
    plan = experiment.plan
    found = run_on_grid(experiment, HandGrid(experiment), RunFolder(tmp_path))
    with pytest.raises(ValueError, match=r"privacy\.noise_source=os: .* dpsgd .*must be seed"):
        audit_experiment(experiment, build_attacks(config), RunFolder(tmp_path))
    # noise on what is sent does not reach the memory, whose steps then are the same with either
    # source
    shard = experiment.shards[plan.victim]
    outward = {"update": plan.mechanisms["dpsgd"]}
    one, other = (
        restore_memories(replace(plan, mechanisms=outward, noise_source=s), found, shard)
        for s in ("os", "seed")
    )
    memory = one.memories[plan.victim]
    same = other.memories[plan.victim]
    assert (
        memory
        and memory.keys() == same.keys()
        and all(torch.equal(memory[k], same[k]) for k in same)
    )


def private(*more: str) -> Experiment:
    return build_experiment(
        compose_config("audit", [*SMALL, "algo=fedavg", "privacy=client", *more]), noise_here=False
    )


class Real(HandGrid):
    """Clients that are no study; secrets: by client."""

    def __init__(self, experiment: Experiment, secrets: Sequence[str] = ()) -> None:
        super().__init__(experiment)
        self.app = client_app(self.own)
        self.secrets = secrets

    def own(self, context: Context) -> tuple[Any, Any, Any]:
        plan, ledger, shard = super().own(context)
        own = self.secrets[shard.client].encode() if self.secrets else b""
        return replace(plan, keys=replace(plan.keys, secret=own)), ledger, shard


def test_a_real_client_does_not_draw_its_noise_from_the_public_seed(tmp_path: Path) -> None:
    with pytest.raises(FederationFailed, match="noise_source=seed: who takes part knows the seed"):
        run_on_grid(experiment := private(), Real(experiment), RunFolder(tmp_path))
    with pytest.raises(FederationFailed, match="this client has no secret"):
        run_on_grid(
            experiment := private("privacy.noise_source=secret"),
            Real(experiment),
            RunFolder(tmp_path),
        )
    bare = build_experiment(compose_config("audit", [*SMALL, "algo=fedavg"]))
    assert (
        run_on_grid(bare, Real(bare), RunFolder(tmp_path)).round == bare.plan.method.rounds
    )  # no noise, nothing to refuse


def test_each_real_client_has_a_secret_of_its_own(tmp_path: Path) -> None:
    """The server, which has none, runs the rounds; one client's secret changes its own noise and no
    one else's."""

    def first_round(name: str, secrets: Sequence[str]) -> list[bytes]:
        experiment = private("privacy.noise_source=secret")
        run_on_grid(experiment, Real(experiment, secrets), RunFolder(tmp_path / name))
        return [
            RunFolder(tmp_path / name).artifact_file(0, k).read_bytes()
            for k in range(len(experiment.shards))
        ]

    clients = len(private().shards)
    secrets = [f"the secret of client {k}" for k in range(clients)]
    one = first_round("one", secrets)
    again = first_round("again", secrets)
    other = first_round("other", ["quite another secret", *secrets[1:]])
    assert one == again and one[0] != other[0] and one[1:] == other[1:]

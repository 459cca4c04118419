"""Which rounds a view of features joins: those in which the attacker knows the same map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attacks.types import Adversary, Capture, Knowledge, Surface, View
from privdd.auditing import views as views_module
from privdd.auditing.pipeline import membership_game_of
from privdd.auditing.shadow_models import audited_rounds
from privdd.auditing.signal_extraction import extract_signals
from privdd.auditing.views import FinishedRun, client_views, describe_other_networks
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.federated.trainer import Trainer
from privdd.runtime.run_folder import RunFolder

SMALL = [
    "preset=smoke", "partition.clients=2", "data.limit=120", "audit.records=8", "audit.worlds=2", "algo.rounds=3",
]  # fmt: skip
DISTILLED = ["algo.matching.iterations=1", "algo.dpc=1", "algo.reads=1", "algo.projection_epochs=1", "algo.server.epochs=1"]


@pytest.mark.parametrize(
    ("algo", "in_step", "rounds"),
    [("fedrd_dp", True, [2, 1, 0]), ("fedrd", True, [2]), ("fedrd_dp", False, [2])],
    ids=["one map", "another map each round", "rows that start anew each round"],
)
def test_rounds_are_joined_where_the_same_rows_went_through_the_same_map(
    algo: str, in_step: bool, rounds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface = "synthetic_representations"
    if in_step:  # no method here sends the same rows twice: say that this one does
        monkeypatch.setattr(views_module, "MAPPED_SURFACES", (Surface(surface),))
    overrides = [f"algo={algo}", *DISTILLED]
    experiment = build_experiment(compose_config("audit", [*SMALL, *overrides]))
    game, shards, victim = membership_game_of(experiment), list(experiment.shards), experiment.plan.victim
    shards[victim] = game.shard_of_replay(shards[victim], 0)
    folder = RunFolder(tmp_path)
    progress = Trainer(experiment.plan, shards, experiment.test_records, experiment.engine, folder, experiment.new_ledger()).run()
    scene = FinishedRun(experiment, progress, game, shards[victim])
    (last,) = audited_rounds(progress.snapshots)
    signals = extract_signals(scene.adversary_view(last), progress.snapshots[last].sent)
    stacked = {key: value.unsqueeze(0).expand(2, *value.shape) for key, value in signals.items()}
    views = {str(view.surface): view for view in client_views(scene, last, stacked)}
    captures = views[surface].captures
    assert [capture.round for capture in captures] == rounds
    for capture in captures:
        sent = progress.snapshots[capture.round].sent
        assert any(all(torch.equal(capture.value[k], v[k]) for k in capture.value.keys() & v.keys()) for v in sent.values())


def test_networks_beside_the_classifier_are_named_and_buffers_are_none() -> None:
    """As feddm_guided_dp sends a head and a network, FedAvg a model's parameters and its buffers apart."""
    model = torch.nn.BatchNorm1d(2)
    state = model.state_dict()
    sent = [{"weight": state["weight"], "bias": state["bias"]}, {"running_mean": torch.ones(2)}, {"weight": torch.zeros(3, 4)}]
    captures = [Capture(2, -1, name, value, {}) for name, value in zip(("model", "buffers", "network"), sent)]
    knowledge = Knowledge((1, 2, 2), 2, torch.zeros(1), torch.zeros(1), model)
    view = View(Surface.GLOBAL_MODEL, Adversary.PUBLIC, tuple(captures), knowledge)
    assert describe_other_networks(view).startswith("the server sends network beside the classifier: ")
    assert describe_other_networks(replace(view, captures=view.captures[:2])) == ""
    assert describe_other_networks(replace(view, surface=Surface.GLOBAL_IMAGES)) == ""


def test_of_several_networks_that_a_server_sends_the_auditors_own_is_filled() -> None:
    """feddm_guided_dp sends a head and a network, whose last layers have one name and other shapes."""
    model = torch.nn.Linear(3, 2)
    own = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    other = {"weight": torch.zeros(2, 5), "bias": torch.zeros(2)}
    for sent in ({"model": own, "network": other}, {"network": {"weight": other["weight"]}, "model": own}):
        model.load_state_dict(views_module._matching_parameters(sent, model))
        assert torch.equal(model.weight, own["weight"]) and torch.equal(model.bias, own["bias"])

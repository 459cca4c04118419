"""Which rounds a view of features joins: those in which the attacker knows the same map."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from privdd.assembly import assemble
from privdd.auditing import game_of
from privdd.config import composed
from privdd.replays import audited_rounds
from privdd.store import RunFolder
from privdd.training import Trainer
from privdd.views import Scene, client_views

SMALL = [
    "preset=smoke", "partition.clients=2", "data.limit=120", "audit.records=8", "audit.worlds=2", "algo.rounds=3",
    "algo.matching.iterations=1", "algo.dpc=1", "algo.reads=1", "algo.projection_epochs=1", "algo.server.epochs=1",
]  # fmt: skip


@pytest.mark.parametrize(("algo", "rounds"), [("fedrd_dp", [2, 1, 0]), ("fedrd", [2])])
def test_rounds_are_joined_where_the_projection_is_frozen(algo: str, rounds: list[int], tmp_path: Path) -> None:
    experiment = assemble(composed("audit", [f"algo={algo}", *SMALL]))
    game, shards, victim = game_of(experiment), list(experiment.shards), experiment.plan.victim
    shards[victim] = game.shard(shards[victim], 0)
    folder = RunFolder(tmp_path)
    progress = Trainer(experiment.plan, shards, experiment.test, experiment.engine, folder, experiment.ledger()).run()
    scene = Scene(experiment, progress, game, shards[victim])
    (last,) = audited_rounds(progress.snapshots)
    signals = scene.lens(last).signals(progress.snapshots[last].sent)
    stacked = {key: value.unsqueeze(0).expand(2, *value.shape) for key, value in signals.items()}
    views = {str(view.surface): view for view in client_views(scene, last, stacked)}
    captures = views["synthetic_representations"].captures
    assert [capture.round for capture in captures] == rounds
    for capture in captures:
        assert torch.equal(capture.value["x"], progress.snapshots[capture.round].sent["representations"]["x"])
    assert [capture.round for capture in views["labels"].captures] == [2]

"""How shadow models are trained: one by one or as one wide network, by one rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from privdd.auditing.replay import draw_membership_game
from privdd.auditing.shadow_models import ShadowTraining, TrainingChoice
from privdd.auditing.views import FinishedRun
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.federated.settings import AuditSettings, GuaranteeBudget
from privdd.federated.simulation import Progress, Snapshot
from privdd.runtime.engine import Engine
from privdd.runtime.run_folder import RunFolder
from tests.federations import tiny


def choice(*more: str, worlds: int = 30, algo: str = "fedavg", training: str = "auto") -> TrainingChoice:
    """Of a tiny client's replays."""
    made = tiny(algo, *more)
    plan = made.plan
    (whole,) = (s for s in made.shards if s.client == plan.victim)
    game = draw_membership_game(whole, 20, worlds, plan.keys, plan.relation)
    server, ctx = plan.method.init(plan.problem, plan.keys), plan.client_context(0, plan.victim)
    sent = {
        name: artifact.value
        for name, artifact in plan.method.local(plan.method.broadcast(server), {}, whole, ctx)[0].items()
    }
    snapshots = {0: Snapshot(0, plan.method.broadcast(server), sent)}
    scene = FinishedRun(made, Progress(1, server, {}, made.new_ledger(), snapshots=snapshots), game, whole)
    view = scene.adversary_view(0)
    return ShadowTraining(
        plan, snapshots, 0, whole, game, view, RunFolder(Path("nowhere")), Engine(), "config", training
    ).training_choice


def test_many_worlds_of_small_images_share_a_wide_network_and_few_do_not() -> None:
    assert choice("model=mlp").training == "vectorised"
    few = choice("model=mlp", worlds=12)
    assert few.training == "loop" and "too few" in few.why


def test_what_is_asked_for_is_done_where_there_is_such_a_form() -> None:
    assert choice("model=mlp", training="loop") == TrainingChoice("loop", "as asked for")
    assert choice("model=mlp", worlds=3, training="vectorised") == TrainingChoice("vectorised", "as asked for")
    for asked in ("auto", "vectorised"):
        assert choice("model=mlp", algo="moon", training=asked).why.endswith("has no batched form")


def test_replays_that_share_their_work_run_together_however_few() -> None:
    assert choice("model=convnet", algo="feddm", worlds=3) == TrainingChoice("vectorised", "replays share their work")
    assert choice("model=convnet", algo="feddm", worlds=3, training="loop").training == "loop"


SETTINGS = {
    "client": "auto", "records": 9, "worlds": 3, "federations": 0, "victims": 1, "confidence": 0.95, "guarantee": GuaranteeBudget(),
}  # fmt: skip


def test_a_way_that_does_not_exist_is_one_line() -> None:
    line = "audit.training=fast: allowed are auto, loop, vectorised"
    with pytest.raises(ValueError, match=line):
        AuditSettings(**{**SETTINGS, "training": "fast"})
    with pytest.raises(ValueError, match=line):
        build_experiment(compose_config("audit", ["algo=fedavg", "preset=smoke", "data.limit=120", "audit.training=fast", "attack=[lira]"]))
    for good in ("auto", "loop", "vectorised"):
        assert AuditSettings(**{**SETTINGS, "training": good}).training == good

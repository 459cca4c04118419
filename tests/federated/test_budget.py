"""A round whose projected epsilon exceeds the stated budget is refused before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from privdd.api import audit, train
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.federated.budget import BudgetExceeded, projected_epsilon
from privdd.federated.simulation import run_round, start_training

TINY = [
    "preset=smoke",
    "data=digits",
    "data.limit=120",
    "data.test_limit=20",
    "partition=iid",
    "partition.clients=3",
    "algo=fedavg",
    "privacy=client",
    "algo.rounds=3",
    "algo.local_epochs=1",
    "engine=serial",
]


def test_the_projection_is_what_the_ledger_says_afterwards() -> None:
    experiment = build_experiment(compose_config("train", TINY))
    plan = experiment.plan
    progress = start_training(plan, experiment.new_ledger())
    for round in range(plan.method.rounds):
        projected = projected_epsilon(plan, progress.ledger, round)
        progress, _, _ = run_round(plan, progress, experiment.shards, experiment.engine)
        assert progress.ledger.epsilon() == pytest.approx(projected, rel=1e-9)


def test_the_round_that_costs_too_much_is_refused_and_the_others_are_kept(tmp_path: Path) -> None:
    experiment = build_experiment(compose_config("train", TINY))
    costs = [projected_epsilon(experiment.plan, experiment.new_ledger(), 0)]
    between = 1.1 * costs[0]  # above one round, below two
    with pytest.raises(
        BudgetExceeded, match=r"privacy.budget=.*: round 2 of 3 is refused: .*; 1 rounds ran"
    ):
        train(*TINY, f"privacy.budget={between}", out=tmp_path / "run")
    assert not (tmp_path / "run" / "training.json").exists()
    with pytest.raises(BudgetExceeded, match="round 1 of 3 is refused"):
        train(*TINY, f"privacy.budget={0.9 * costs[0]}", out=tmp_path / "none")


def test_a_sufficient_budget_changes_nothing(tmp_path: Path) -> None:
    plain = train(*TINY, out=tmp_path / "plain")
    held = train(*TINY, "privacy.budget=100", out=tmp_path / "held")
    assert plain["accuracy"] == held["accuracy"]
    assert plain["epsilon"] == held["epsilon"]


def test_a_budget_on_unprotected_uploads_is_refused(tmp_path: Path) -> None:
    open_run = [item for item in TINY if item != "privacy=client"]
    with pytest.raises(ValueError, match="budget"):
        audit(*open_run, "privacy.budget=3", out=tmp_path / "run")

"""A few rounds of each kind are timed, whatever the method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from privdd.auditing import timing
from privdd.auditing.cost_estimate import extrapolate_cost, probe_seconds
from privdd.auditing.timing import RoundTiming, RoundTimings, rounds_to_time, time_rounds
from privdd.cli.build import build_experiment
from privdd.federated.experiment import Experiment
from tests.federations import tiny, tiny_config

KEPT = {"fedavg": False, "scaffold": True, "fedlgd": True, "dp_head": False, "feddm_guided_dp": False, "fedfed": False}  # whether uploads depend on it


def audited(algo: str, *more: str) -> Experiment:
    return build_experiment(tiny_config(algo, *more, command="audit"))


def test_rounds_to_time_are_first_and_second_of_each_kind_and_the_last() -> None:
    plan = audited("fedfed", "algo.distill_rounds=5", "algo.base.rounds=9").plan
    assert rounds_to_time(plan) == {0: True, 1: False, 5: True, 6: True, 7: False, 14: False}
    plan = audited("fedlgd", "algo.rounds=20", "algo.tau=3", "algo.tau_step=5").plan
    assert rounds_to_time(plan) == {0: True, 1: True, 2: False, 5: False, 19: False}


def test_rounds_that_everybody_drops_out_of_are_not_timed() -> None:
    """Under trust=secagg, where too few clients are left for a sum."""
    experiment = audited(
        "fedavg", "trust=secagg", "trust.dropout=0.5", "trust.least=2", "algo.weighting=uniform", "privacy=none",
        "algo.rounds=6", "seed=1",
    )  # fmt: skip
    taken = [t for t in range(6) if experiment.plan.participants(t)]
    assert 0 not in taken and 0 < len(taken) < 6
    rounds = time_rounds(experiment, print)
    assert set(rounds.timed) == {*taken[:2], taken[-1]} and rounds.timing_of(experiment.plan, 0) == rounds.timed[taken[0]]
    assert extrapolate_cost(experiment, rounds, 0.1, []).stages["train"] > 0 and probe_seconds(experiment, 2, rounds, 0.1, []) > 0


def test_a_round_costs_what_one_of_its_kind_did() -> None:
    plan = audited("fedlgd", "algo.rounds=20", "algo.tau=3", "algo.tau_step=5").plan
    rounds = RoundTimings({t: RoundTiming(float(t), 0.0, 1.0) for t in (0, 1, 2, 5, 19)})
    assert [rounds.timing_of(plan, t).usual for t in (0, 1, 4, 5, 7, 10, 18, 19)] == [0, 1, 2, 5, 2, 5, 2, 19]
    assert rounds.timing_of(plan, 5).seconds_for(3) == 16.0


@pytest.mark.parametrize("algo", ["fedavg", "scaffold", "feddm_dp", "fedfed", "fedlgd", "fedrd", "feddm_guided_dp", "dp_head", "vhl"])
def test_each_of_them_is_timed_though_those_between_are_not_run(algo: str) -> None:
    experiment, said = audited(algo), list[str]()
    rounds = time_rounds(experiment, said.append)
    assert set(rounds.timed) == set(rounds_to_time(experiment.plan)) and len(said) == len(rounds.timed)
    assert all(one.usual > 0 and one.victim > 0 and one.server >= 0 for one in rounds.timed.values())
    assert not rounds.least and rounds.share == 1 and rounds.chained == KEPT.get(algo, rounds.chained)


def test_long_training_is_timed_in_a_moment() -> None:
    """A million epochs of two clients, and as many steps of the server."""
    short = time_rounds(audited("fedavg", "algo.local_epochs=100"), print).timed[0]
    long = time_rounds(audited("fedavg", "algo.local_epochs=1000000"), print)
    assert long.left and long.timed[0].usual > 100 * short.usual  # 10,000 times the epochs
    server = time_rounds(audited("feddm", "algo.server.epochs=1000000"), print).timed[0]
    assert server.server > server.usual  # of a million epochs, most of which are owed


def endless(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, seed: int) -> Any:
    while True:
        torch.ones(2).sum()


def test_training_that_never_ends_costs_at_least_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MAX_ROUND_SECONDS", 0.05)
    rounds = time_rounds(audited("own_training", f"algo.training={__name__}:endless"), print)
    assert rounds.least and rounds.timed[0].usual > 0


def test_test_images_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny("fedavg")
    many = replace(experiment.dataset, test=experiment.test_records.take([0] * 200_000))
    few, more = (time_rounds(e, print).timed[1].server for e in (experiment, replace(experiment, dataset=many)))
    assert more > few  # 5,000 times as many

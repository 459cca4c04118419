"""Rounds cost what one of many does; what only a first or a last one computes is charged once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from privdd.auditing.cost_estimate import measure_round_cost
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Plan
from tests.federations import tiny


def with_rounds(algo: str, **rounds: int) -> Experiment:
    experiment = tiny(algo)
    method: Any = experiment.plan.method
    inner = {"base": replace(method.base, rounds=rounds.pop("train"))} if "train" in rounds else {}
    return replace(experiment, plan=replace(experiment.plan, method=replace(method, **rounds, **inner)))


def test_what_only_a_first_or_a_last_round_computes_is_charged_once() -> None:
    """A client's round takes 1 s, the server publishes for 50 s, and the first time of all takes 7 s more."""
    whole, small = with_rounds("fedavg", rounds=30), with_rounds("fedavg", rounds=1)
    clients = len(small.shards)

    def again(plan: Plan) -> float:
        return clients + 50.0 * (plan.method.rounds == 1)

    cost = measure_round_cost(whole, small, 7 + again(small.plan), again)
    assert cost.training_seconds(whole.plan, small.plan) == pytest.approx(7 + 30 * clients + 50)
    assert cost.federation_seconds(whole.plan, 0) == pytest.approx(30 * clients + 50)
    assert cost.federation_seconds(whole.plan, 2) == pytest.approx(2 * clients + 50)


def test_rounds_of_several_phases_cost_what_their_own_phase_does() -> None:
    """A client's round of the first phase takes 3 s, of the others 1 s."""
    whole, small = with_rounds("fedfed", distill_rounds=5, train=9), with_rounds("fedfed", distill_rounds=1, train=1)
    clients = len(small.shards)
    cost = measure_round_cost(whole, small, clients * (3.0 + 1 + 1), lambda plan: clients * 3.0)
    assert cost.training_seconds(whole.plan, small.plan) == pytest.approx(clients * (5 * 3 + 1 + 9))
    assert cost.federation_seconds(whole.plan, 2) == pytest.approx(clients * 2)


def test_rounds_are_really_run_to_be_timed() -> None:
    whole, small = with_rounds("fedavg", rounds=3), with_rounds("fedavg", rounds=1)
    cost = measure_round_cost(whole, small, 1.0)
    assert cost.first > 0 and cost.training_seconds(whole.plan, small.plan) > 1.0

"""The line before a run: what is counted, and that short runs print none."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest
from torch import Tensor, nn

from privdd.auditing import cost_estimate
from privdd.auditing.cost_estimate import (
    STEPS_PER_SEARCH_STEP,
    TEST_SECONDS,
    UnitCost,
    describe_estimate,
    estimate_cost,
    time_unit_costs,
)
from privdd.cli.build import build_experiment
from privdd.cli.dry_run import longest_searches
from privdd.federated.experiment import Experiment
from privdd.models.layers import Shape
from privdd.models.own import Example
from privdd.privacy.mechanisms import ClippedSum
from privdd.runtime.engine import Engine
from tests.fake_device import fake_gpu
from tests.federations import tiny_config

MANY = ["partition.clients=3", "algo.rounds=2", "audit.worlds=5", "audit.rounds=2"]


def audited(*more: str) -> Experiment:
    return build_experiment(tiny_config("fedavg", *MANY, *more, command="audit"))


def test_stages_count_rounds_of_clients_replays_and_steps_of_searches() -> None:
    experiment = audited("audit.federations=4", "audit.federation_rounds=1")
    stages = estimate_cost(experiment, UnitCost(2.0, 0.5), [100, 0]).stages
    assert (stages["train"], stages["worlds"], stages["federations"]) == (2.0 * 6, 2.0 * 4 * 2, 2.0 * 4 * 3)
    assert stages["attacks"] == pytest.approx(0.5 * STEPS_PER_SEARCH_STEP * 100) and not stages["guarantee tests"]
    noised = replace(experiment.plan, mechanisms={"dpsgd": ClippedSum(1.0, 1.0)})
    assert estimate_cost(replace(experiment, plan=noised), UnitCost(2.0, 0.5), []).stages["guarantee tests"] == TEST_SECONDS


def test_phases_after_the_first_cost_what_their_steps_do() -> None:
    experiment = build_experiment(tiny_config("fedfed", "audit.worlds=1", command="audit"))
    plan = experiment.plan
    size, rounds = len(experiment.shards[plan.victim].train), [plan.method.phase(t) for t in range(plan.method.rounds)]
    steps = int(plan.method.settings(size)["local_steps"])
    first, others = rounds.count("distill"), len(rounds) - rounds.count("distill")
    expected = 3 * (2.0 * first + 0.5 * steps * others)
    assert first and others and estimate_cost(experiment, UnitCost(2.0, 0.5), []).stages["train"] == pytest.approx(expected)


def test_a_short_run_says_nothing_and_a_long_one_one_line() -> None:
    experiment = audited()
    unit = time_unit_costs(experiment)
    assert 0 < unit.step <= unit.round < 5 and describe_estimate(experiment, [0]) == ""
    longer = replace(experiment, engine=Engine("processes", workers=2))
    line = describe_estimate(longer, [10**8])
    assert re.fullmatch(r"estimated [\d hmins]+ on 2 processes, [\d.]+ [MG]B at least; --dry-run for details", line)


def test_what_only_a_first_round_computes_is_not_charged_to_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that keeps what a public map says of its records: slow once, then quick."""
    units = iter([UnitCost(100.0, 0.01), UnitCost(0.01, 0.01), UnitCost(100.0, 0.01), UnitCost(50.0, 0.01)])
    monkeypatch.setattr(cost_estimate, "time_unit_costs", lambda experiment: next(units))
    assert describe_estimate(audited(), [0]) == ""
    assert describe_estimate(audited(), [0]).startswith("estimated ")  # slow every time: 6 rounds of clients and 8 replays at 50 s
    assert next(units, None) is None


def test_a_long_round_is_timed_in_part() -> None:
    """A million epochs."""
    began = time.process_time()
    assert time_unit_costs(audited("algo.local_epochs=1000000")).round > 100
    assert time.process_time() - began < 20


class Unread(nn.Module):
    """Holds a layer and passes records by it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Odd(Example):
    """A layer that no record passes, and frozen ones."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes)
        self.body.requires_grad_(False)
        self.body.insert(0, Unread())


def test_a_network_with_frozen_layers_and_one_that_is_not_used_is_timed() -> None:
    unit = time_unit_costs(audited("model=own", f"model.target={__name__}:Odd"))
    assert unit.step > 0


def test_the_longest_search_of_each_attack_is_found_at_any_depth() -> None:
    config = tiny_config("fedavg", "attack=[lira,gradient_inversion,update_inversion]", command="audit")
    assert longest_searches(config) == {"lira": 0, "gradient_inversion": 200, "update_inversion": 200}


@pytest.mark.parametrize("algo", ["fedrd", "fedrd_dp", "fedrd_printed"])
def test_a_classifier_of_projected_records_is_timed_on_these(algo: str) -> None:
    """Its layers have the size of what records are projected to."""
    experiment = build_experiment(tiny_config(algo, "model.name=smallcnn", "model.norm=none", "model.width=4", command="audit"))
    assert time_unit_costs(experiment).step > 0


def test_a_step_is_timed_where_the_run_computes() -> None:
    with fake_gpu() as gpu:
        experiment = audited("device=cuda")
        plan, records = experiment.plan, experiment.shards[experiment.plan.victim].train
        before = gpu.traffic.waited.total()
        assert cost_estimate._time_training_step(experiment, 1.0, lambda x: x) > 0 and len(records) and plan.problem.device == "cuda"
        assert gpu.traffic.sent.total() > 0 and gpu.traffic.waited.total() > before

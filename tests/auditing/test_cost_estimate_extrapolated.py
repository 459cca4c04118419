"""What a part of a few rounds took is scaled by the run's own numbers, and said to be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privdd.auditing.cost_estimate import (
    PROBE_TEST_SECONDS,
    STEPS_PER_SEARCH_STEP,
    describe_source,
    extrapolate_cost,
    probe_seconds,
)
from privdd.auditing.timing import RoundTiming, RoundTimings
from privdd.cli.build import build_experiment
from privdd.federated.experiment import Experiment
from tests.federations import tiny_config

MANY = ["partition.clients=3", "audit.worlds=5", "audit.rounds=2", "audit.federations=4"]


def audited(algo: str, *more: str) -> Experiment:
    return build_experiment(tiny_config(algo, *MANY, *more, command="audit"))


def test_every_stage_is_scaled_by_its_count() -> None:
    experiment = audited("fedavg", "algo.rounds=10", "audit.federation_rounds=0")
    rounds = RoundTimings({0: RoundTiming(2.0, 3.0, 5.0), 1: RoundTiming(1.0, 2.0, 4.0), 9: RoundTiming(1.0, 2.0, 50.0)}, opening=6.0)
    price = extrapolate_cost(experiment, rounds, 0.5, [100, 0])
    trained = (3 * 2 + 5) + 8 * (3 * 1 + 4) + (3 * 1 + 50)
    assert price.stages["train"] == pytest.approx(6 + trained) and price.stages["federations"] == pytest.approx(4 * trained)
    assert price.stages["worlds"] == pytest.approx(4 * 2 * (3 + 9 * 2) / 10)
    assert price.stages["attacks"] == price.longest == pytest.approx(STEPS_PER_SEARCH_STEP * 0.5 * 100)
    last = audited("fedavg", "algo.rounds=10", "audit.federation_rounds=1")
    assert extrapolate_cost(last, rounds, 0.5, []).stages["federations"] == pytest.approx(4 * 53 + trained - 53)
    chained = extrapolate_cost(experiment, replace(rounds, chained=True), 0.5, [])
    assert chained.stages["worlds"] == pytest.approx(4 * (3 + 9 * 2))


def test_it_is_said_in_words_what_was_measured_and_what_was_not() -> None:
    one = {0: RoundTiming(1.0, 1.0, 1.0)}
    assert describe_source(RoundTimings(one)).startswith("extrapolated from a part of 1 round on this machine (two clients); attacks")
    assert "first steps of each long loop, one in 16 of a client's records" in describe_source(RoundTimings(one, left=2, share=16))
    assert "factor of five" in describe_source(RoundTimings(one)) and "more than this" not in describe_source(RoundTimings(one))
    experiment = audited("fedavg")
    price = extrapolate_cost(experiment, RoundTimings(one, least=True), 0.1, [])
    assert "training takes more than this" in price.source and price.format_lines()[-1].startswith("at least ")


def test_a_probe_is_known_to_be_long_before_it_is_run() -> None:
    experiment = audited("fedfed", "algo.distill_rounds=5", "algo.base.rounds=9")
    rounds = RoundTimings({0: RoundTiming(2.0, 3.0, 1.0), 5: RoundTiming(1.0, 1.0, 0.0), 6: RoundTiming(1.0, 2.0, 1.0)})
    assert experiment.plan.mechanisms
    expected = 3 * 7 + 3 + 4 + 4 * (3 + 1 + 2) + STEPS_PER_SEARCH_STEP * 5 + PROBE_TEST_SECONDS
    assert probe_seconds(experiment, 3, rounds, 0.5, [10]) == pytest.approx(expected)

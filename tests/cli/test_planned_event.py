"""``planned_event``: what calibration to ``privacy.epsilon`` counts on is what the ledger holds when the run is over."""

from __future__ import annotations

import pytest

from privdd.cli.build import build_experiment, planned_event
from privdd.cli.compose import compose_config
from privdd.federated.simulation import run_round, start_training
from privdd.privacy.accounting import epsilon
from privdd.privacy.ledger import Ledger

TINY = ["preset=smoke", "data=digits", "data.limit=120", "data.test_limit=20", "partition=iid", "partition.clients=3"]
MATCHING = ["algo.matching.iterations=2", "algo.server.epochs=1"]
RUNS = {
    "dpsgd": ["algo=fedavg", "privacy=dpsgd", "algo.rounds=2", "algo.local_epochs=2", "privacy.sampling_probability=0.5"],
    "dpsgd, some clients": [
        "algo=fedavg", "privacy=dpsgd", "algo.rounds=4", "algo.local_epochs=1", "privacy.sampling_probability=0.5",
        "participation=0.4",
    ],
    "client": ["algo=fedavg", "privacy=client", "algo.rounds=3", "algo.local_epochs=1"],
    "noisy embeddings": ["algo=feddm_dp", "algo.rounds=2", *MATCHING],
    "noisy embeddings, sampled": ["algo=feddm_dp", "algo.rounds=2", *MATCHING, "privacy.sampling_probability=0.5"],
    "clipped gradients": ["algo=feddm", "privacy=clipped_gradient", "algo.start=noise", "algo.rounds=2", *MATCHING],
    "features": ["algo=fedfed_dp", "algo.distill_rounds=1", "algo.base.rounds=1", "privacy.sampling_probability=0.5"],
}  # fmt: skip


def ledger_of(*overrides: str) -> tuple[Ledger, float]:
    """The ledger of a finished run, and the epsilon of what was planned."""
    experiment = build_experiment(compose_config("train", [*TINY, *overrides]))
    plan, progress = experiment.plan, start_training(experiment.plan, experiment.new_ledger())
    while progress.round < plan.method.rounds:
        progress, _, _ = run_round(plan, progress, experiment.shards, experiment.engine)
    ledger = progress.ledger
    return ledger, epsilon(planned_event(plan), ledger.delta, relation=ledger.relation)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_spends_what_was_planned(name: str) -> None:
    ledger, planned = ledger_of(*RUNS[name])
    assert 0 < ledger.epsilon() < float("inf")
    assert ledger.epsilon() == pytest.approx(planned, rel=1e-6)


def test_the_busiest_client_decides_what_is_planned() -> None:
    """With 1.2 of 3 clients in each of four rounds they take part unequally; everybody in all rounds costs more."""
    ledger, planned = ledger_of(*RUNS["dpsgd, some clients"])
    spent = sorted(ledger.epsilon(client=client) for client in range(3))
    assert spent[0] < spent[-1] == pytest.approx(planned, rel=1e-6)


def test_a_delta_above_one_over_a_clients_records_is_warned_about() -> None:
    with pytest.warns(UserWarning, match=r"privacy\.delta=0\.1 is above 1/[0-9]+, one over a client's records"):
        build_experiment(compose_config("train", [*TINY, "algo=fedavg", "privacy=dpsgd", "privacy.delta=0.1"]))

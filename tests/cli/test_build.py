"""Tests of ``privdd.cli.build``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import functional_call

from privdd.cli.build import (
    STANDARDISED_CLASSIFIERS,
    build_experiment,
    planned_event,
    standardise_classifiers,
)
from privdd.cli.build import instantiate_node as built
from privdd.cli.compose import compose_config
from privdd.cli.overrides import check_overrides
from privdd.cli.settings import settings_fingerprint
from privdd.core.rng import Keys
from privdd.core.types import Records
from privdd.core.validation import BadConfig
from privdd.data.dataset import PUBLISHED_SCALES
from privdd.federated.simulation import run_round, start_training
from privdd.models import ModelSpec, build, initial
from privdd.privacy.accounting import epsilon
from privdd.privacy.ledger import Ledger
from privdd.training.sgd import local_sgd, vectorised_sgd

# Networks that standardise are networks that are given standardised images, and nothing else
# changes.


MEAN = (0.5, 0.4, 0.3)
STD = (0.2, 0.25, 0.3)
SHAPE = (3, 16, 16)


def pair(name: str, **more: Any) -> tuple[ModelSpec, ModelSpec]:
    return ModelSpec(name, width=4, **more), ModelSpec(name, width=4, scale=(MEAN, STD), **more)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([(x[:, c] - MEAN[c]) / STD[c] for c in range(3)], 1)


def records(n: int, seed: int) -> Records:
    x = torch.rand((n, *SHAPE), generator=Keys(seed).torch())
    return Records(x, torch.arange(n) % 10, torch.arange(n))


@pytest.mark.parametrize("name", STANDARDISED_CLASSIFIERS)
def test_every_classifier_reads_standardised_images(name: str) -> None:
    plain, scaled = pair(name)
    state = initial(plain, SHAPE, 10, Keys(1).torch())
    x = records(4, 2).x
    assert list(initial(scaled, SHAPE, 10, Keys(1).torch())) == list(state)
    got = functional_call(build(scaled, SHAPE, 10).eval(), state, (x,))
    torch.testing.assert_close(
        got, functional_call(build(plain, SHAPE, 10).eval(), state, (by_hand(x),))
    )
    assert not torch.allclose(
        got, functional_call(build(plain, SHAPE, 10).eval(), state, (x,)), rtol=1e-5, atol=1e-6
    )


def test_training_is_that_on_standardised_records_alone_and_side_by_side() -> None:
    plain, scaled = pair("smallcnn")
    own = [records(12, 3), records(9, 4)]
    start = initial(plain, SHAPE, 10, Keys(5).torch())
    how: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "batch_size": 4, "epochs": 2}
    expected = [
        local_sgd(
            build(plain, SHAPE, 10),
            start,
            Records(by_hand(r.x), r.y, r.ids),
            generator=Keys(60 + k).torch(),
            **how,
        )[0]
        for k, r in enumerate(own)
    ]
    alone = [
        local_sgd(build(scaled, SHAPE, 10), start, r, generator=Keys(60 + k).torch(), **how)[0]
        for k, r in enumerate(own)
    ]
    apart = [Records(r.x, r.y, r.ids + 100 * k) for k, r in enumerate(own)]
    together = vectorised_sgd(
        build(scaled, SHAPE, 10),
        start,
        apart,
        generators=[Keys(60 + k).torch() for k in range(2)],
        **how,
    )
    for k in range(2):
        for name, value in expected[k].items():
            torch.testing.assert_close(alone[k][name], value, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(together[k][0][name], value, rtol=1e-4, atol=1e-5)


def test_the_classifiers_of_a_method_are_given_the_published_constants() -> None:
    config = compose_config(
        "train", ["algo=virtual_data", "data=fashion_mnist", "data.standardise=true"]
    )
    assert (
        built(standardise_classifiers(config)).inner.model.scale
        == PUBLISHED_SCALES["fashion_mnist"]
    )
    off = compose_config("train", ["data=fashion_mnist"])
    assert built(standardise_classifiers(off)).model.scale is None
    on = compose_config("train", ["data=fashion_mnist", "data.standardise=true"])
    assert built(standardise_classifiers(on)).model.scale == PUBLISHED_SCALES[
        "fashion_mnist"
    ] and settings_fingerprint(on) != settings_fingerprint(off)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("algo=fedrd", "its classifier reads projected records"),
        ("algo=fedfed", "shared features as well as the records"),
        ("algo=fedfed_virtual", "shared features as well as the records"),
        ("algo=dp_means", "would do nothing"),
    ],
)
def test_methods_whose_classifiers_read_no_images_are_refused(typed: str, says: str) -> None:
    with pytest.raises(BadConfig, match=says):
        standardise_classifiers(
            compose_config("train", [typed, "data=mnist", "data.standardise=true"])
        )


def test_data_without_published_constants_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no published mean and deviation for data=digits"):
        standardise_classifiers(compose_config("train", ["data.standardise=true"]))
    for name in PUBLISHED_SCALES:
        check_overrides("train", [f"data={name}", "data.standardise=true"])
    with pytest.raises(ValueError, match=r"as many channels"):
        build(ModelSpec("mlp", scale=(MEAN, STD)), (1, 8, 8), 10)


# ``planned_event``: what calibration to ``privacy.epsilon`` counts on is what the ledger holds when
# the run is over.


TINY = [
    "preset=smoke",
    "data=digits",
    "data.limit=120",
    "data.test_limit=20",
    "partition=iid",
    "partition.clients=3",
]
MATCHING = ["algo.matching.iterations=2", "algo.server.epochs=1"]
RUNS = {
    "dpsgd": [
        "algo=fedavg",
        "privacy=dpsgd",
        "algo.rounds=2",
        "algo.local_epochs=2",
        "privacy.sampling_probability=0.5",
    ],
    "dpsgd, some clients": [
        "algo=fedavg",
        "privacy=dpsgd",
        "algo.rounds=4",
        "algo.local_epochs=1",
        "privacy.sampling_probability=0.5",
        "participation=0.4",
    ],
    "client": ["algo=fedavg", "privacy=client", "algo.rounds=3", "algo.local_epochs=1"],
    "noisy embeddings": ["algo=feddm_dp", "algo.rounds=2", *MATCHING],
    "noisy embeddings, sampled": [
        "algo=feddm_dp",
        "algo.rounds=2",
        *MATCHING,
        "privacy.sampling_probability=0.5",
    ],
    "clipped gradients": [
        "algo=feddm",
        "privacy=clipped_gradient",
        "algo.start=noise",
        "algo.rounds=2",
        *MATCHING,
    ],
    "features": [
        "algo=fedfed_dp",
        "algo.distill_rounds=1",
        "algo.base.rounds=1",
        "privacy.sampling_probability=0.5",
    ],
}


def ledger_of(*overrides: str) -> tuple[Ledger, float]:
    """The ledger of a finished run, and the epsilon of what was planned."""
    experiment = build_experiment(compose_config("train", [*TINY, *overrides]))
    plan = experiment.plan
    progress = start_training(experiment.plan, experiment.new_ledger())
    while progress.round < plan.method.rounds:
        progress, _, _ = run_round(plan, progress, experiment.shards, experiment.engine)
    ledger = progress.ledger
    return ledger, epsilon(planned_event(plan), ledger.delta, relation=ledger.relation)


@pytest.mark.nightly(but=["client"])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_spends_what_was_planned(name: str) -> None:
    ledger, planned = ledger_of(*RUNS[name])
    assert 0 < ledger.epsilon() < float("inf")
    assert ledger.epsilon() == pytest.approx(planned, rel=1e-6)


def test_the_busiest_client_decides_what_is_planned() -> None:
    """With 1.2 of 3 clients in each of four rounds they take part unequally; everybody in all
    rounds costs more."""
    ledger, planned = ledger_of(*RUNS["dpsgd, some clients"])
    spent = sorted(ledger.epsilon(client=client) for client in range(3))
    assert spent[0] < spent[-1] == pytest.approx(planned, rel=1e-6)


def test_a_delta_above_one_over_a_clients_records_is_warned_about() -> None:
    with pytest.warns(
        UserWarning, match=r"privacy\.delta=0\.1 is above 1/[0-9]+, one over a client's records"
    ):
        build_experiment(
            compose_config("train", [*TINY, "algo=fedavg", "privacy=dpsgd", "privacy.delta=0.1"])
        )

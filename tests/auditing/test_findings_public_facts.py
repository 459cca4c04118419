"""What a report calls public does not depend on the records, and says what the plan does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from privdd.auditing.findings import noise_settings_of, public_information
from privdd.core.types import Records, Shard
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import publish_final_state, run_round, start_training
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import Engine
from tests.federations import ALGOS, tiny, trained

CASES = [
    *((algo,) for algo in ALGOS if algo.endswith("_dp")),
    ("fedavg",), ("fedavg", "privacy=dpsgd"), ("fedavg", "privacy=client", "participation=0.67"),
]  # fmt: skip


def facts(experiment: Experiment, ledger: Ledger) -> dict[str, str]:
    found = [(fact["what"], fact["value"]) for fact in public_information(experiment, ledger)]
    assert len(dict(found)) == len(found)
    return dict(found)


def other_records(shard: Shard) -> Shard:
    """As many records, with other images and, where labels may change, other labels."""
    return shard.with_train(Records(1 - shard.train.x, shard.train.y.flip(0), shard.train.ids))


def halved(shard: Shard) -> Shard:
    """Half of the records zeroed out: what fewer of them is where their number is public."""
    half = len(shard.train) // 2
    gone = shard.train.take(range(half, len(shard.train)))
    return replace(
        shard.with_train(shard.train.take(range(half))), nulls=replace(gone, x=torch.zeros_like(gone.x))
    )


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_no_fact_depends_on_the_records(case: tuple[str, ...]) -> None:
    experiment = tiny(*case)
    said = [facts(experiment, trained(*case)[0].ledger)]
    for other in (other_records, halved):
        shards = [other(shard) for shard in experiment.shards]
        progress = start_training(experiment.plan, experiment.new_ledger())
        while progress.round < experiment.plan.method.rounds:
            progress = run_round(experiment.plan, progress, shards, Engine())[0]
        said.append(facts(experiment, publish_final_state(experiment.plan, progress).ledger))
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_applications_are_those_of_the_ledger(case: tuple[str, ...]) -> None:
    """Counted in the rows, release by release: of one client and, where a release has one, one class."""
    experiment, (progress, _, _) = tiny(*case), trained(*case)
    said = facts(experiment, progress.ledger)
    for name in experiment.plan.mechanisms:
        counts: dict[tuple[int, int, str | None], int] = {}
        for row in progress.ledger.releases:
            if row.name == name:
                at = (row.round, row.client, row.partition)
                counts[at] = counts.get(at, 0) + row.count
        (each,) = set(counts.values())
        assert said[f"applications of {name}"].startswith(f"{each} by a client in ")
        assert said[f"applications of {name}"].endswith("to each class") is any(part for _, _, part in counts)


def test_the_words_of_one_run() -> None:
    case = ("fedavg", "privacy=dpsgd", "participation=0.67")
    said = facts(tiny(*case), trained(*case)[0].ledger)
    assert said["participation"].startswith("2 of 3 clients a round") and said["rounds"] == "2"
    assert said["mechanism of dpsgd"] == (
        "ClippedSum, noise multiplier 1, clip norm 1, sampling probability 0.5, normaliser 20"
    )
    assert said["applications of dpsgd"] == "2 by a client in each round"
    numbers = sum(t.numel() for t in trained(*case)[1][0].values["update"].values())
    assert said["shape of update"].startswith(f"{numbers} numbers in ")


def test_accuracy_on_private_records_is_said_to_be_uncovered() -> None:
    for algo, private in (("fedrd_dp", True), ("fedproto", True), ("fedavg", False), ("feddm_dp", False)):
        said = facts(tiny(algo), trained(algo)[0].ledger)["accuracy"]
        assert ("no ε covers it" in said) is private, algo


@pytest.mark.parametrize(("more", "expected"), [
    (("privacy=none",), None),
    (("privacy=dpsgd",), ("seed", False, False)),
    (("privacy=dpsgd", "privacy.noise_source=os"), ("os", False, True)),
    (("privacy=dpsgd", "privacy.noise_source=secret", "privacy.secret=a_secret_of_letters"), ("secret", False, True)),
    (("privacy=dpsgd", "privacy.noise_source=secret", "privacy.secret=a_secret_of_letters", "privacy.paired_noise=true"),
     ("secret", True, False)),
])  # fmt: skip
def test_whose_the_noise_is(more: tuple[str, ...], expected: tuple[str, bool, bool] | None) -> None:
    found = noise_settings_of(tiny("fedavg", *more))
    assert found == (expected and dict(zip(("source", "paired", "for_release"), expected)))

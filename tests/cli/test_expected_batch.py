"""What divides a sum over drawn records follows the sampling probability and public sizes, and
epsilon what is drawn."""

from __future__ import annotations

import warnings

import pytest

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from tests.federations import tiny_config


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["preset=smoke"], 20),  # 23 are drawn: near enough
        (["preset=smoke", "data=fashion_mnist"], 20),
        (["preset=default"], 20),  # 12
        (["preset=default", "data=fashion_mnist"], 64),
        (["preset=paper", "data=cifar10", "partition.heldout=0"], 500),
        (["preset=paper", "data=cifar10", "partition.heldout=200"], 480),
        (
            [
                "preset=paper",
                "data=cifar10",
                "partition.heldout=0",
                "privacy.sampling_probability=0.01",
            ],
            50,
        ),
        (["preset=paper", "data=cifar10", "partition.heldout=0", "privacy.expected_batch=7"], 7),
        (["preset=smoke", "data=npz", "data.root=x.npz"], 20),  # its size is not public
        (["preset=paper", "experiment=feddm_figure3", "algo=fedavg"], 256),
        (["preset=paper", "experiment=fedrd_table2", "algo=fedavg"], 256),
        (
            [
                "preset=smoke",
                "experiment=feddm_figure3",
                "algo=fedavg",
                "data=fashion_mnist",
                "data.limit=2000",
            ],
            20,
        ),
    ],
)
def test_the_divisor_follows_public_sizes(overrides: list[str], expected: int) -> None:
    config = compose_config("train", [*overrides, "privacy=dpsgd"])
    assert config.privacy.mechanisms.dpsgd.normaliser == config.privacy.expected_batch == expected


def test_the_other_files_follow_too() -> None:
    shared = ["preset=paper", "data=cifar10", "partition.heldout=0"]
    assert compose_config("train", [*shared, "algo=fedfed_dp"]).privacy.expected_batch == 500
    assert (
        compose_config(
            "train", [*shared, "algo=feddm", "privacy=clipped_gradient"]
        ).privacy.expected_batch
        == 500
    )  # all of a class
    assert (
        compose_config(
            "train", ["preset=smoke", "algo=feddm", "privacy=clipped_gradient"]
        ).privacy.expected_batch
        == 20
    )


def test_the_papers_sampling_reaches_the_accounting() -> None:
    config = compose_config(
        "train", ["preset=paper", "experiment=feddm_figure3", "algo=fedavg", "privacy=dpsgd"]
    )
    assert config.privacy.mechanisms.dpsgd.sampling_probability == 256 / 5000
    typed = compose_config(
        "train",
        [
            "preset=paper",
            "experiment=feddm_figure3",
            "algo=fedavg",
            "privacy=dpsgd",
            "privacy.sampling_probability=0.2",
        ],
    )
    assert typed.privacy.mechanisms.dpsgd.sampling_probability == 0.2


def test_a_divisor_far_from_what_is_drawn_is_warned_of() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        build_experiment(tiny_config("fedavg", "privacy=dpsgd"))
    assert not any("expected_batch" in str(one.message) for one in told)
    with pytest.warns(
        UserWarning,
        match=r"privacy\.expected_batch=2: a step draws 20 records on average, so that it is 10 "
        r"times as long",
    ):
        build_experiment(tiny_config("fedavg", "privacy=dpsgd", "privacy.expected_batch=2"))
    with pytest.warns(UserWarning, match=r"privacy\.expected_batch=100"):
        build_experiment(
            tiny_config(
                "feddm",
                "algo.start=noise",
                "privacy=clipped_gradient",
                "privacy.expected_batch=100",
            )
        )

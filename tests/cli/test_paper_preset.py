"""What a run with ``preset=paper`` says of itself, by the table that judges experiments."""

from __future__ import annotations

import pytest

from privdd.cli.main import config_of
from privdd.cli.paper_preset import FIRST_EXPERIMENTS, describe_paper_differences

NAMED = {
    "feddm": "data and partition are",
    "fedrd": "data and partition are",
    "fedfed": "data, partition, participation and network are",
    "fedlgd": "data and partition are",
}


@pytest.mark.nightly(cases=["fedfed", "fedlgd"])
@pytest.mark.parametrize("algo", sorted(FIRST_EXPERIMENTS))
def test_the_preset_alone_names_what_is_not_the_papers(algo: str) -> None:
    line = describe_paper_differences(config_of("audit", f"algo={algo}", "preset=paper"))
    experiment = FIRST_EXPERIMENTS[algo]
    assert line.startswith(f"preset=paper: {NAMED[algo]}")
    assert line.endswith(f"with experiment={experiment} preset=paper they are")


@pytest.mark.nightly(cases=["fedfed", "fedlgd"])
@pytest.mark.parametrize("algo", sorted(FIRST_EXPERIMENTS))
def test_other_presets_and_a_papers_experiment_say_nothing(algo: str) -> None:
    assert describe_paper_differences(config_of("audit", f"algo={algo}")) == ""
    experiment = f"experiment={FIRST_EXPERIMENTS[algo]}"
    assert describe_paper_differences(config_of("audit", experiment, "preset=paper")) == ""


def test_what_is_typed_as_the_paper_has_it_is_not_named() -> None:
    typed = ("algo=feddm", "preset=paper", "data=mnist", "partition.heldout=0")
    assert describe_paper_differences(config_of("train", *typed)) == ""


def test_a_method_of_no_paper_says_nothing() -> None:
    assert describe_paper_differences(config_of("audit", "algo=fedavg", "preset=paper")) == ""

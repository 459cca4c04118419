"""The papers' tables: every row and column of every experiment is a run that can be asked for, on
equal terms."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from omegaconf import OmegaConf

from privdd.cli.compose import compose_config, config_dir, group_choices
from privdd.cli.main import check_command
from privdd.cli.paper_rows import find_differing_terms, row_terms, stated_difference
from privdd.cli.settings import settings_fingerprint
from privdd.core.validation import BadConfig

EXPERIMENTS = group_choices("experiment", [config_dir()])
KEYS = {"source", "metric", "best", "stand_in", "offline", "terms", "differs", "columns"}


@cache
def paper_of(name: str) -> dict[str, Any]:
    typed = [f"experiment={name}"]
    if compose_config("train", typed).data.name == "domain_folder":
        typed.append("data.root=.")  # images of one's own, which no test opens
    return OmegaConf.to_container(check_command("train", typed).paper, resolve=True)


@pytest.mark.nightly(
    cases=[
        "feddm_figure4",
        "fedfed_table4",
        "fedfed_table5",
        "fedlgd_table5",
        "fedlgd_table6",
        "fedlgd_table7",
    ]
)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_says_all_that_a_reader_needs(name: str) -> None:
    paper = paper_of(name)
    assert (
        set(paper) == KEYS
        and paper["metric"] in ("global", "local")
        and isinstance(paper["best"], bool)
    )
    assert set(paper["offline"]) == {"overrides", "note"} and bool(
        paper["offline"]["overrides"]
    ) == bool(paper["offline"]["note"])
    for column in paper["columns"].values():
        assert all(value is None or 0 < value < 100 for value in column["accuracy"].values())


def test_unequal_rounds_and_networks_are_seen() -> None:
    """The faults that this is for: 50 rounds beside 1016, and another network."""
    plain = row_terms(
        compose_config("train", ["experiment=feddm_table2", "algo=fedavg", "preset=paper"])
    )
    longer = row_terms(
        compose_config(
            "train", ["experiment=feddm_table2", "algo=fedprox", "preset=paper", "algo.rounds=50"]
        )
    )
    other = row_terms(
        compose_config(
            "train", ["experiment=feddm_table2", "algo=feddm", "preset=paper", "model.width=64"]
        )
    )
    assert find_differing_terms({"a": plain, "b": longer, "c": other}) == {
        "rounds": {"b"},
        "model": {"c"},
    }
    assert (
        find_differing_terms({"a": plain, "c": {**other, "model": plain["model"]}}) == {}
    )  # FedDM trains no classifier locally
    assert (
        stated_difference(
            {"rounds": {"algo=fedfed": "why"}}, "rounds", "algo=fedfed algo/base=fedprox"
        )
        == "why"
    )
    assert stated_difference({"rounds": {"algo=fedfed": "why"}}, "rounds", "algo=fedfed_raw") == ""


def test_terms_reach_every_row() -> None:
    """A typed term moves the methods of a table together; a typed setting of one method still
    wins."""
    for algo in ("fedavg", "fedfed", "scaffold"):
        config = check_command(
            "train",
            [
                "experiment=fedfed_table2",
                f"algo={algo}",
                "paper.terms.local_epochs=5",
                "preset=paper",
            ],
        )
        assert (config.algo.get("base") or config.algo).local_epochs == 5
        assert (config.algo.get("base") or config.algo).rounds == 1000
    assert (
        check_command(
            "train", ["experiment=fedfed_table2", "algo=fedavg", "algo.rounds=7"]
        ).algo.rounds
        == 7
    )
    assert (
        check_command("train", ["algo=fedavg", "preset=paper"]).algo.rounds == 50
    )  # without an experiment


def test_typed_values_win_and_the_printed_numbers_do_not_decide_what_is_sent() -> None:
    config = check_command(
        "train", ["experiment=fedrd_table1", "algo=fedavg", "partition.alpha=0.3"]
    )
    assert (
        config.algo._target_.endswith("FedAvg")
        and config.partition.alpha == 0.3
        and config.data.name == "fashion_mnist"
    )
    before = settings_fingerprint(config)
    config.paper.source = "elsewhere"
    assert settings_fingerprint(config) == before


def test_an_unknown_experiment_is_refused() -> None:
    with pytest.raises(BadConfig, match="nowhere"):
        check_command("train", ["experiment=nowhere"])

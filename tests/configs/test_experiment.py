"""The papers' tables: every row and column of every experiment is a run that can be asked for."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from privdd.cli.assemble import build
from privdd.cli.config import choices, composed, config_dir
from privdd.cli.main import checked
from privdd.cli.read_settings import fingerprint
from privdd.core.errors import BadConfig
from privdd.federated.method import Method

EXPERIMENTS = choices("experiment", [config_dir()])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rows_and_columns_compose(name: str) -> None:
    paper = OmegaConf.to_container(checked("train", [f"experiment={name}"]).paper)
    assert set(paper) == {"source", "metric", "stand_in", "columns"} and paper["metric"] in ("global", "local")
    for column in paper["columns"].values():
        for row, value in column["accuracy"].items():
            config = composed("train", [f"experiment={name}", *column["overrides"], *row.split()])
            assert isinstance(build(config.algo), Method) and 0 < value < 100


def test_typed_values_win_and_the_printed_numbers_do_not_decide_what_is_sent() -> None:
    config = checked("train", ["experiment=fedrd_table1_fashion_mnist", "algo=fedavg", "partition.alpha=0.3"])
    assert config.algo._target_.endswith("FedAvg") and config.partition.alpha == 0.3 and config.data.name == "fashion_mnist"
    before = fingerprint(config)
    config.paper.source = "elsewhere"
    assert fingerprint(config) == before


def test_an_unknown_experiment_is_refused() -> None:
    with pytest.raises(BadConfig, match="nowhere"):
        checked("train", ["experiment=nowhere"])

"""Under trust=secagg no real client sends its upload, which has a share of the noise, whichever
server asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from privdd.core.validation import BadConfig
from privdd.federated.simulation import run_round, start_training
from privdd.integrations.flower import GridEngine, find_clients, run_on_grid
from privdd.integrations.reply_check import FederationFailed
from privdd.runtime.run_folder import RunFolder
from tests.federations import tiny
from tests.integrations.hand_grid import AlteringGrid


def test_neither_server_nor_client_begins(tmp_path: Path) -> None:
    experiment = tiny("fedavg", "model=mlp", "algo.weighting=uniform", "trust=secagg")
    grid = AlteringGrid(experiment)
    with pytest.raises(BadConfig, match=r"^trust=secagg: simulates"):
        run_on_grid(experiment, grid, RunFolder(tmp_path))  # type: ignore[arg-type]
    engine = GridEngine(grid, find_clients(grid, 3, 1.0), 10.0)  # type: ignore[arg-type]
    with pytest.raises(
        FederationFailed, match="trust=secagg: this client would send its own upload"
    ):
        run_round(
            experiment.plan,
            start_training(experiment.plan, experiment.new_ledger()),
            experiment.shards,
            engine,
        )  # type: ignore[arg-type]

"""Under trust=secagg no real client sends its upload, which has a share of the noise, whichever server asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from privdd.adapters.flower_messages import FederationFailed
from privdd.adapters.flower_server import GridEngine, federate, find_clients
from privdd.core.errors import BadConfig
from privdd.federated.simulation import start, step
from privdd.runtime.run_folder import RunFolder
from tests.adapters.hand_grid import AlteringGrid
from tests.federations import tiny


def test_neither_server_nor_client_begins(tmp_path: Path) -> None:
    experiment = tiny("fedavg", "model=mlp", "algo.weighting=uniform", "trust=secagg")
    grid = AlteringGrid(experiment)
    with pytest.raises(BadConfig, match=r"^trust=secagg: a simulation"):
        federate(experiment, grid, RunFolder(tmp_path))  # type: ignore[arg-type]
    engine = GridEngine(grid, find_clients(grid, 3, 1.0), 10.0)  # type: ignore[arg-type]
    with pytest.raises(FederationFailed, match="trust=secagg: this client would send its own upload"):
        step(experiment.plan, start(experiment.plan, experiment.ledger()), experiment.shards, engine)  # type: ignore[arg-type]

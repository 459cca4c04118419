"""Run folders that several tests read; written once for a session, never changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.reporting.fixture import write_run

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    kinds = ("unprotected", "consistent", "contradiction")
    return {kind: write_run(root / kind, kind=kind) for kind in kinds}

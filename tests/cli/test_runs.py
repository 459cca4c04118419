"""All of a run is computed with the threads that its config names: with others sums are rounded otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from privdd.cli.runs import run_audit, run_training
from privdd.methods.fedavg import FedAvg
from privdd.runtime.workers import threads
from tests.federations import tiny_config

SMALL = ("audit.records=12", "audit.worlds=3", "audit.federations=2", "audit.federation_rounds=1", "attack=[lira]")


@pytest.mark.parametrize(("command", "run", "more"), [("train", run_training, ()), ("audit", run_audit, SMALL)])
def test_the_servers_work_takes_the_runs_threads(
    command: str, run: Callable[..., int], more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of training, and of the rounds that replayed federations share, on a machine whose cores are more."""
    seen, honest = [], FedAvg.aggregate

    def aggregate(self: FedAvg, *given: Any) -> Any:
        seen.append(torch.get_num_threads())
        return honest(self, *given)

    monkeypatch.setattr(FedAvg, "aggregate", aggregate)
    with threads(3):
        assert run(tiny_config("fedavg", *more, command=command), tmp_path / "run", ["privdd"]) in (0, 2)
        assert torch.get_num_threads() == 3
    assert set(seen) == {1} and len(seen) > (2 if more else 1)

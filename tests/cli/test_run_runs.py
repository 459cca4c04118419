"""All of a run is computed with the threads that its config names: with others sums are rounded otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from privdd.cli.run import run_audit, run_training
from privdd.federated.trainer import Trainer
from privdd.methods.fedavg import FedAvg
from privdd.privacy.ledger import Ledger
from privdd.runtime.files import read_json
from privdd.runtime.workers import torch_threads
from tests.federations import tiny_config

SMALL = ("audit.records=12", "audit.worlds=3", "audit.federations=2", "audit.federation_rounds=1", "attack=[lira]")


def test_what_a_training_tells_is_what_it_came_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The last round's accuracy, not the best; each epsilon with its accountant, delta, unit and relation; all of it sealed."""
    honest = Trainer.run
    monkeypatch.setattr(Trainer, "run", lambda self: replace(honest(self), accuracy=(0.75, 0.25)))
    config = tiny_config("fedavg", "privacy=client", "privacy.noise_multiplier=3", "privacy.delta=1e-4")
    assert run_training(config, tmp_path / "run", ["privdd"]) == 0
    told, manifest = (read_json(tmp_path / "run" / name) for name in ("training.json", "manifest.json"))
    ledger = Ledger.from_json(read_json(next((tmp_path / "run").rglob("ledger.json"))))
    assert (ledger.unit, ledger.relation) == ("client", "zero_out")  # or this tests less
    assert {name: told[name] for name in ("accuracy", "delta", "unit", "relation")} == {"accuracy": 0.25, "delta": 1e-4, "unit": "client", "relation": "zero_out"}
    pld, rdp = told["epsilon"]["pld"], told["epsilon"]["rdp"]
    assert pld == pytest.approx(ledger.epsilon(), rel=1e-6) and f"{pld:.4g}" != f"{rdp:.4g}"
    said = f"accuracy 0.2500, epsilon {pld:.4g} by PLD ({rdp:.4g} by RDP) at delta 0.0001 per client, zero_out; {tmp_path / 'run'}\n"
    assert capsys.readouterr().out == said and {"training.json", "config.yaml"} <= {*manifest["files"]}


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
    with torch_threads(3):
        assert run(tiny_config("fedavg", *more, command=command), tmp_path / "run", ["privdd"]) in (0, 2)
        assert torch.get_num_threads() == 3
    assert set(seen) == {1} and len(seen) > (2 if more else 1)

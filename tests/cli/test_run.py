"""Tests of ``privdd.cli.run``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from privdd.cli.inputs import TRACKERS, check_tracking
from privdd.cli.run import run_audit, run_training, track_run, tracked_scalars
from privdd.core.validation import BadConfig
from privdd.federated.trainer import Trainer
from privdd.methods.fedavg import FedAvg
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import torch_threads
from privdd.runtime.files import read_json
from tests.federations import tiny_config
from tests.reporting.test_decision import row, run

# All of a run is computed with the threads that its config names: with others sums are rounded
# otherwise.


SMALL = (
    "audit.records=12",
    "audit.worlds=3",
    "audit.federations=2",
    "audit.federation_rounds=1",
    "attack=[lira]",
)


def test_what_a_training_tells_is_what_it_came_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last round's accuracy, not the best; each epsilon with its accountant, delta, unit and
    relation; all of it sealed."""
    honest = Trainer.run
    monkeypatch.setattr(Trainer, "run", lambda self: replace(honest(self), accuracy=(0.75, 0.25)))
    config = tiny_config(
        "fedavg", "privacy=client", "privacy.noise_multiplier=3", "privacy.delta=1e-4"
    )
    assert run_training(config, tmp_path / "run", ["privdd"]) == 0
    told, manifest = (
        read_json(tmp_path / "run" / name) for name in ("training.json", "manifest.json")
    )
    ledger = Ledger.from_json(read_json(next((tmp_path / "run").rglob("ledger.json"))))
    assert (ledger.unit, ledger.relation) == ("client", "zero_out")  # or this tests less
    assert {name: told[name] for name in ("accuracy", "delta", "unit", "relation")} == {
        "accuracy": 0.25,
        "delta": 1e-4,
        "unit": "client",
        "relation": "zero_out",
    }
    pld = told["epsilon"]["pld"]
    rdp = told["epsilon"]["rdp"]
    assert pld == pytest.approx(ledger.epsilon(), rel=1e-6) and f"{pld:.4g}" != f"{rdp:.4g}"
    said = (
        f"accuracy 0.2500, epsilon {pld:.4g} by PLD ({rdp:.4g} by RDP) at delta 0.0001 per "
        f"client, zero_out; {tmp_path / 'run'}\n"
    )
    assert capsys.readouterr().out == said and {"training.json", "config.yaml"} <= {
        *manifest["files"]
    }


@pytest.mark.nightly(cases=["audit-run_audit-more1"])
@pytest.mark.parametrize(
    ("command", "run", "more"), [("train", run_training, ()), ("audit", run_audit, SMALL)]
)
def test_the_servers_work_takes_the_runs_threads(
    command: str,
    run: Callable[..., int],
    more: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Of training, and of the rounds that replayed federations share, on a machine whose cores are
    more."""
    seen = []
    honest = FedAvg.aggregate

    def aggregate(self: FedAvg, *given: Any) -> Any:
        seen.append(torch.get_num_threads())
        return honest(self, *given)

    monkeypatch.setattr(FedAvg, "aggregate", aggregate)
    with torch_threads(3):
        assert run(tiny_config("fedavg", *more, command=command), tmp_path / "run", ["privdd"]) in (
            0,
            2,
        )
        assert torch.get_num_threads() == 3
    assert set(seen) == {1} and len(seen) > (2 if more else 1)


# Scalars as the viewers' own files hold them, and a missing viewer is said before training.


SCALARS = {"epsilon/pld": 3.0, "update/lira/server/auc": 0.75, "epsilon/rdp": float("inf")}


def test_tensorboard_holds_what_was_measured(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    track_run("tensorboard", tmp_path / "run", [0.25, 0.5], SCALARS)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    found = {
        (name, one.step): one.value
        for name in events.Tags()["scalars"]
        for one in events.Scalars(name)
    }
    assert found == {
        ("accuracy", 1): 0.25,
        ("accuracy", 2): 0.5,
        ("epsilon/pld", 2): 3.0,
        ("update/lira/server/auc", 2): 0.75,
    }


@pytest.mark.parametrize("choice", TRACKERS)
def test_a_missing_tracker_is_said_before_training(
    choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_tracking(choice)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        BadConfig, match=rf"tracking={choice}: the package is missing; pip install {choice}$"
    ):
        check_tracking(choice)


def test_every_number_has_its_own_name_and_none_is_below_what_the_sample_shows() -> None:
    """Two adversaries play one attack on one surface; one of its rates is too small for the
    sample."""
    rates = {
        key: {"tpr": tpr, "ci": [0.0, 1.0], "resolvable": key == "0.1"}
        for key, tpr in (("0.001", 0.75), ("0.1", 0.5))
    }
    found = tracked_scalars(
        run([row(rates, auc=0.5), row(None, auc=0.75, adversary="peer")], "unprotected", "inf")
    )
    assert {name: value for name, value in found.items() if name.startswith("features")} == {
        "features/lira/server/auc": 0.5,
        "features/lira/server/tpr_at_0.1": 0.5,
        "features/lira/peer/auc": 0.75,
    }
    assert found["epsilon/pld"] == found["epsilon/rdp"] == float("inf")


def test_unknown_trackers_are_refused() -> None:
    check_tracking(None)
    with pytest.raises(BadConfig, match="tracking=aim: allowed are null, tensorboard"):
        check_tracking("aim")

"""Scalars as the viewers' own files hold them, and a missing viewer is said before training."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from privdd.cli.run import TRACKERS, check_tracking, track_run, tracked_scalars
from privdd.core.validation import BadConfig
from tests.reporting.test_decision import row, run

SCALARS = {"epsilon/pld": 3.0, "update/lira/server/auc": 0.75, "epsilon/rdp": float("inf")}


def test_tensorboard_holds_what_was_measured(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    track_run("tensorboard", tmp_path / "run", [0.25, 0.5], SCALARS)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    found = {(name, one.step): one.value for name in events.Tags()["scalars"] for one in events.Scalars(name)}
    assert found == {("accuracy", 1): 0.25, ("accuracy", 2): 0.5, ("epsilon/pld", 2): 3.0, ("update/lira/server/auc", 2): 0.75}


@pytest.mark.parametrize("choice", TRACKERS)
def test_a_missing_tracker_is_said_before_training(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_tracking(choice)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadConfig, match=rf"tracking={choice}: the package is missing; pip install 'privdd\["):
        check_tracking(choice)


def test_every_number_has_its_own_name_and_none_is_below_what_the_sample_shows() -> None:
    """Two adversaries play one attack on one surface; one of its rates is too small for the sample."""
    rates = {key: {"tpr": tpr, "ci": [0.0, 1.0], "resolvable": key == "0.1"} for key, tpr in (("0.001", 0.75), ("0.1", 0.5))}
    found = tracked_scalars(run([row(rates, auc=0.5), row(None, auc=0.75, adversary="peer")], "unprotected", "inf"))
    assert {name: value for name, value in found.items() if name.startswith("features")} == {
        "features/lira/server/auc": 0.5, "features/lira/server/tpr_at_0.1": 0.5, "features/lira/peer/auc": 0.75,
    }  # fmt: skip
    assert found["epsilon/pld"] == found["epsilon/rdp"] == float("inf")


def test_unknown_trackers_are_refused() -> None:
    check_tracking(None)
    with pytest.raises(BadConfig, match="tracking=aim: allowed are null, tensorboard"):
        check_tracking("aim")

"""What is kept of the artifacts can be limited; the ledger is complete whatever is kept."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from privdd.cli.compose import compose_config
from privdd.cli.run import run_training
from privdd.federated import experiment
from privdd.federated.experiment import CaptureSettings
from privdd.runtime.run_folder import read_tensors
from tests.federations import tiny

TINY = [
    "preset=smoke",
    "partition.clients=3",
    "data.limit=120",
    "model=mlp",
    "model.width=8",
    "algo.rounds=3",
    "algo.local_epochs=1",
]


def kept(path: Path) -> set[str]:
    return {
        str(p.relative_to(path / "artifacts")) for p in (path / "artifacts").rglob("*.safetensors")
    }


def train(path: Path, *capture: str) -> set[str]:
    run_training(compose_config("train", [*TINY, *capture]), path, [])
    return kept(path)


def test_captures_by_round_client_and_surface(tmp_path: Path) -> None:
    everything = train(tmp_path / "all")
    assert len(everything) == 9
    assert {p.split("/")[0] for p in train(tmp_path / "ends", "capture.rounds=first_last")} == {
        "round_000",
        "round_002",
    }
    victims = {p.split("/")[1] for p in train(tmp_path / "victim", "capture.clients=victim")}
    assert len(victims) == 1
    assert train(tmp_path / "lists", "capture.rounds=[1]", "capture.clients=[0,2]") == {
        "round_001/client_0.safetensors",
        "round_001/client_2.safetensors",
    }
    counts = train(tmp_path / "counts", "capture.surfaces=[counts]")
    assert counts == everything
    assert set(
        read_tensors(tmp_path / "counts" / "artifacts" / "round_000" / "client_0.safetensors")
    ) == {"count/n"}
    assert train(tmp_path / "nothing", "capture.clients=[]") == set()
    ledgers = {
        (tmp_path / name / "ledger.json").read_text()
        for name in ("all", "ends", "victim", "lists", "counts", "nothing")
    }
    assert len(ledgers) == 1 and len(json.loads(ledgers.pop())["releases"]) == 9 * 2 + 4


def test_of_many_large_uploads_the_audited_clients_alone_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine uploads: at one byte more than they take all are kept, at one less those of one
    client."""
    train(tmp_path / "all", "capture.clients=all")
    sent = read_tensors(tmp_path / "all" / "artifacts" / "round_000" / "client_0.safetensors")
    update = sum(t.numel() * t.element_size() for t in sent.values())
    monkeypatch.setattr(experiment, "MAX_CAPTURED_BYTES", 9 * update)
    assert len(train(tmp_path / "fits")) == 9
    monkeypatch.setattr(experiment, "MAX_CAPTURED_BYTES", 9 * update - 1)
    assert (
        len({p.split("/")[1] for p in train(tmp_path / "auto")}) == 1
        and len(kept(tmp_path / "auto")) == 3
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"surfaces": "some"},
        {"surfaces": ["update", "weights"]},
        {"rounds": [-1]},
        {"rounds": [True]},
        {"clients": 3},
        {"clients": ["victim"]},
        {"rounds": None},
        {"surfaces": True},
    ],
)
def test_captures_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=rf"^capture\.{next(iter(wrong))}=.*allowed are all"):
        CaptureSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("typed", ["capture.rounds=[0,3]", "capture.clients=[3]"])
def test_a_round_or_a_client_that_is_not_there_is_refused(typed: str) -> None:
    key = typed.split("=")[0]
    with pytest.raises(ValueError, match=rf"^{re.escape(key)}=.*: this run has {key[8:]} 0 to 2$"):
        tiny("fedavg", "algo.rounds=3", typed)
    assert tiny("fedavg", "algo.rounds=3", f"{key}=[2]")

"""A run that diverged says so everywhere, and is never shown as a model with an accuracy."""

from __future__ import annotations

import csv
import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from privdd.auditing.coverage import DIVERGED_NOTE
from privdd.auditing.findings import write_audit
from privdd.auditing.pipeline import audit_experiment
from privdd.cli.build import build_attacks, build_experiment
from privdd.cli.run import prepare_run_folder, run_training
from privdd.federated import checkpoint
from privdd.federated.simulation import start_training
from privdd.federated.trainer import Trainer, accuracy_of_logits, is_finite_state, record_accuracy
from privdd.privacy.ledger import Ledger
from privdd.reporting.comparison import print_training_table, write_comparison, write_training_table
from privdd.reporting.finding_selection import diverged_run_text
from privdd.reporting.page import write_report
from privdd.reporting.terminal import print_summary
from privdd.runtime.run_folder import RunFolder
from privdd.runtime.seal import seal_folder
from privdd.verification.run_folder import verify_run
from tests.federations import tiny, tiny_config

WILD = ["algo.lr=1e15", "algo.rounds=2", "model=mlp"]
LIGHT = [
    "attack=[lira,label_counts]",
    "audit.records=16",
    "audit.worlds=4",
    "audit.victims=1",
    "audit.waive.global_model=beside_the_point",
]


def test_finite() -> None:
    assert is_finite_state({}) and is_finite_state({"a": torch.zeros(3), "n": torch.tensor([2])})
    for bad in (math.nan, math.inf, -math.inf):
        assert not is_finite_state({"a": torch.zeros(3), "b": torch.tensor([0.0, bad])})


def test_share_right() -> None:
    y = torch.tensor([0, 1, 1])
    logits = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    assert accuracy_of_logits(logits, y) == pytest.approx(2 / 3)
    ruled_out = torch.tensor([[2.0, -math.inf], [-math.inf, 3.0], [1.0, 0.0]])
    assert accuracy_of_logits(ruled_out, y) == pytest.approx(2 / 3)
    for bad in (math.nan, math.inf):
        broken = logits.clone()
        broken[2, 0] = bad
        assert math.isnan(accuracy_of_logits(broken, y))


def test_the_first_round_without_a_model_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    experiment = tiny("fedavg")
    before = replace(start_training(experiment.plan, Ledger()), round=1)
    assert record_accuracy(before, 0.5).diverged is None and record_accuracy(
        before, 0.5
    ).accuracy == (0.5,)
    with caplog.at_level(logging.WARNING, "privdd"):
        # the parameters are finite, what they predict is not
        gone = record_accuracy(before, math.nan)
    assert gone.diverged == 0 and gone.accuracy == (0.0,)
    assert [r.getMessage() for r in caplog.records] == [
        "training diverged in round 0: the model is not finite and has no accuracy "
        "(lower the learning rate)"
    ]
    caplog.clear()
    later = record_accuracy(replace(gone, round=2), math.nan)
    assert later.diverged == 0 and later.accuracy == (0.0, 0.0) and not caplog.records
    one = replace(before, server={**before.server, "model/head.bias": torch.full((10,), math.nan)})
    assert record_accuracy(one, 0.08).diverged == 0 and record_accuracy(one, 0.08).accuracy == (
        0.0,
    )


@pytest.mark.parametrize("more", [(), ("privacy=dpsgd",)], ids=["plain", "dpsgd"])
def test_training_alone_says_so(
    more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config("fedavg", *WILD, *more)
    assert run_training(config, tmp_path / "wild", ()) == 1
    out = capsys.readouterr().out
    assert (
        out.startswith("training diverged in round ")
        and "accuracy 0" not in out
        and "epsilon" in out
    )
    stored = json.loads((tmp_path / "wild" / "training.json").read_text())
    assert isinstance(stored["diverged"], int) and set(
        stored["accuracy_by_round"][stored["diverged"] :]
    ) == {0.0}
    tame = tiny_config("fedavg", "algo.lr=0.1", "algo.rounds=2", "model=mlp", *more)
    assert run_training(tame, tmp_path / "tame", ()) == 0
    assert json.loads((tmp_path / "tame" / "training.json").read_text())["diverged"] is None
    capsys.readouterr()
    folders = [tmp_path / "wild", tmp_path / "tame"]
    rows = list(csv.DictReader(write_training_table(folders, tmp_path).open()))
    assert {row["diverged"]: bool(row["accuracy_mean"]) for row in rows} == {"1": False, "0": True}
    with (tmp_path / "table.txt").open("w") as file:
        print_training_table(folders, file)
    assert "1 of 1 diverged" in (tmp_path / "table.txt").read_text()


def test_a_resumed_run_still_knows(tmp_path: Path) -> None:
    experiment = tiny("fedavg", *WILD)
    folder = RunFolder(tmp_path)
    trainer = Trainer(
        experiment.plan,
        experiment.shards,
        experiment.test_records,
        experiment.engine,
        folder,
        experiment.new_ledger(),
    )
    diverged = trainer.run().diverged
    assert diverged is not None
    kept = checkpoint.load_checkpoint(folder, experiment.plan)
    assert kept is not None and kept.diverged == diverged


def test_an_audit_attacks_nothing_and_says_why(tmp_path: Path) -> None:
    config = tiny_config(
        "fedavg", *WILD, *LIGHT, "privacy=dpsgd", "privacy.noise_multiplier=1", command="audit"
    )
    experiment = build_experiment(config)
    folder = prepare_run_folder(tmp_path / "run", config)
    result = write_audit(folder, audit_experiment(experiment, build_attacks(config), folder), ())
    assert result.utility is not None and result.utility.diverged is not None
    assert result.findings and {row.note for row in result.findings} == {DIVERGED_NOTE}
    assert all(
        row.auc is None and row.epsilon_shown is None and row.n == 0 for row in result.findings
    )
    assert all(isinstance(row.audited, str) for row in result.surfaces)
    assert any("training diverged in round" in str(row.audited) for row in result.surfaces)
    assert diverged_run_text(result) is not None
    page = write_report(folder.path).read_text()
    round = result.utility.diverged
    assert f"Training diverged in round {round}: no model is left to judge." in page
    assert (
        f"none (diverged in round {round})" in page
        and "contradicts the stated guarantee" not in page
    )
    with (tmp_path / "summary.txt").open("w") as file:
        print_summary(result, file)
    said = " ".join((tmp_path / "summary.txt").read_text().split())
    assert (
        f"accuracy none (diverged in round {round})" in said
        and "Diverged: Training diverged" in said
    )
    seal_folder(folder.path)
    assert verify_run(folder.path).disagreements == ()
    compared = write_comparison([folder.path], tmp_path / "compared").read_text()
    assert "1 of 1 diverged" in compared
    (row,) = csv.DictReader((tmp_path / "compared" / "frontier.csv").open())
    assert row["diverged"] == "1" and row["accuracy_mean"] == "" and row["epsilon_pld"] != "inf"

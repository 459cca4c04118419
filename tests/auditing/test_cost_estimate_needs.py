"""What a run needs at least: against what it really writes, and refused in one line where it does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from attacks.types import Surface
from privdd.auditing import cost_estimate as pricing
from privdd.auditing.cost_estimate import (
    PROCESS_BYTES,
    check_resources,
    format_bytes,
    free_disk,
    free_memory,
    least_needs,
)
from privdd.cli.build import build_experiment
from privdd.cli.run import run_training
from privdd.cli.settings import is_forced
from privdd.core.validation import BadConfig
from privdd.federated.trainer import Trainer
from privdd.runtime.engine import Engine
from privdd.runtime.run_folder import RunFolder
from tests.federations import tiny, tiny_config


def written(experiment: Any, folder: Path) -> int:
    """Bytes of artifacts that training really keeps."""
    Trainer(
        experiment.plan, experiment.shards, experiment.test_records, experiment.engine, RunFolder(folder), experiment.new_ledger(),
        experiment.capture,
    ).run()  # fmt: skip
    return sum(f.stat().st_size for f in (folder / "artifacts").rglob("*") if f.is_file())


@pytest.mark.parametrize("algo", ["fedavg", "feddm"])
@pytest.mark.parametrize("more", [[], ["capture.clients=victim"], ["capture.rounds=first_last", "algo.rounds=3"]])
def test_artifacts_take_what_was_said_and_little_more(algo: str, more: list[str], tmp_path: Path) -> None:
    """Headers of the files and small tensors, such as labels and counts, are not counted."""
    experiment = tiny(algo, "model.width=16", *more)
    said, real = least_needs(experiment).disk, written(experiment, tmp_path)
    assert said <= real <= 1.5 * said


def test_a_large_run_fits_on_a_disk_by_default() -> None:
    """5,000 uploads of a ResNet-18 would take 220 GB; the audited client's are kept alone."""
    large = ("model=resnet18", "model.width=64", "partition=iid", "partition.clients=100", "data.limit=1200", "algo.rounds=50")
    assert 50 * 44e6 < least_needs(tiny("fedavg", *large)).disk < 5 * 2**30
    assert least_needs(tiny("fedavg", *large, "capture.clients=all")).disk > 200e9


def test_of_a_sum_one_artifact_is_kept_however_many_clients_add_to_it(tmp_path: Path) -> None:
    experiment = tiny("fedavg", "model=mlp", "algo.weighting=uniform", "trust=secagg", "partition.clients=4")
    said, real = least_needs(experiment).disk, written(experiment, tmp_path)
    assert said <= real <= 1.5 * said


def test_memory_holds_one_gradient_for_each_audited_record() -> None:
    few, many = (
        least_needs(build_experiment(tiny_config("fedavg", f"audit.records={n}", command="audit"))).memory for n in (10, 20)
    )
    model = tiny("fedavg").plan.method.classifier(tiny("fedavg").plan.problem)
    assert model is not None and many - few == 10 * 4 * sum(t.numel() for t in model.state_dict().values())


@pytest.mark.parametrize("algo", ["fedavg", "feddm"])
def test_every_worker_process_holds_the_program_too(algo: str) -> None:
    alone = build_experiment(tiny_config(algo, command="audit"))
    serial, three = (least_needs(replace(alone, engine=engine)).memory for engine in (Engine(), Engine("processes", workers=3)))
    assert three - serial >= 3 * PROCESS_BYTES and least_needs(replace(alone, engine=Engine("ray", workers=3))).memory == serial


def test_gradients_that_are_not_held_take_the_memory_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (build_experiment(tiny_config("fedavg", f"audit.records={n}", command="audit")) for n in (10, 20))
    assert least_needs(few).memory < least_needs(many).memory
    monkeypatch.setattr(pricing, "MAX_MATRIX_BYTES", 0)
    monkeypatch.setattr(pricing, "MAX_BLOCK_BYTES", 100)
    assert least_needs(few).memory == least_needs(many).memory


def test_surfaces_that_are_not_kept_take_nothing() -> None:
    assert least_needs(tiny("fedavg", f"capture.surfaces=[{Surface.COUNTS}]")).disk == 0


@pytest.mark.parametrize(("full", "says"), [("free_disk", "^capture: .*capture.clients=victim"), ("free_memory", "^memory: ")])
def test_what_cannot_fit_is_refused_unless_forced(
    full: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, full, lambda *at: 1000)
    with pytest.raises(BadConfig, match=says + ".* resources.force=true runs anyway$") as refused:
        check_resources(tiny("fedavg"), tmp_path, force=False)
    assert "1 kB are free" in str(refused.value)
    check_resources(tiny("fedavg"), tmp_path, force=True)


def test_the_commands_ask_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "free_disk", lambda folder: 1000)
    with pytest.raises(BadConfig, match=r"^capture: "):
        run_training(tiny_config("fedavg"), tmp_path / "run", [])
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_force_is_a_truth_value_and_missing_in_old_configs() -> None:
    config = tiny_config("fedavg")
    assert is_forced(config) is False and is_forced(OmegaConf.create({"seed": 0})) is False
    assert is_forced(tiny_config("fedavg", "resources.force=true")) is True
    with pytest.raises(BadConfig, match=r"^resources.force='often': true or false is needed"):
        is_forced(tiny_config("fedavg", "resources.force=often"))


def test_what_is_free_is_found_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_disk(tmp_path / "not" / "yet") > 0
    assert free_memory() is None or free_memory() > 10**6  # type: ignore[operator]
    limit, info = tmp_path / "memory.max", tmp_path / "meminfo"
    limit.write_text("5000\n")
    info.write_text("MemTotal: 99 kB\nMemAvailable: 7 kB\n")
    monkeypatch.setattr(pricing, "MEMINFO", info)
    monkeypatch.setattr(pricing, "CGROUP_LIMITS", (limit,))
    assert free_memory() == 5000
    limit.write_text("max\n")
    assert free_memory() == 7 * 1024


def test_sizes_are_spelt_in_powers_of_a_thousand() -> None:
    assert [format_bytes(n) for n in (12, 1536, 3e9, 2.24e14)] == ["12 bytes", "1.54 kB", "3 GB", "224 TB"]

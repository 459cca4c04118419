"""``benchmarks.gpu`` runs where there is a GPU, says in one line that there is none, and goes on
after a stage that fails."""

from __future__ import annotations

import json
import warnings
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_clock, gpu_stages
from tests.fake_device import fake_gpu

pytestmark = pytest.mark.nightly

DRY = ["--dry", "--threads", "1"]


def test_without_a_gpu_it_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(DRY) == 2
    assert capsys.readouterr().out.splitlines()[0].startswith("--device=cuda: no GPU here")


@pytest.mark.parametrize("name", gpu.STAGES)
def test_every_stage_works_on_the_gpu(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_gpu() as device:
        assert gpu.main([*DRY, "--stages", name, "--json", str(tmp_path / "rows.json")]) == 0
    assert device.traffic.sent.total() > 0
    found = json.loads((tmp_path / "rows.json").read_text())
    assert "a fake GPU" in found["hardware"] and "a fake GPU" in capsys.readouterr().out
    (row,) = found["rows"]
    assert (
        row["stage"] == name
        and row["peak_gib"] == 1.0
        and row["cpu_steps"] == row["gpu_steps"] == 2
    )
    faster = row["gpu"] / row["cpu"] if gpu.STAGES[name].per_step(True) else row["cpu"] / row["gpu"]
    assert row["ratio"] == pytest.approx(faster)


def test_a_stage_that_fails_is_told_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(device: str, steps: int, dry: bool) -> gpu_clock.Run:
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setitem(gpu.STAGES, "fedavg", replace(gpu.STAGES["fedavg"], work=broken))
    assert gpu.main([*DRY, "--device", "cpu", "--stages", "fedavg,dp_sgd"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "fedavg: RuntimeError: out of memory"
    assert lines[2].startswith("dp_sgd") and lines[3].startswith("1 of 2 stages")


def test_a_slow_cpu_takes_fewer_steps() -> None:
    stage = gpu.STAGES["dp_sgd"]
    options = Namespace(dry=True, fastest=False)
    assert gpu.side(stage, "cpu", 3, options, limit=0.0)[1] == 1
    assert gpu.side(replace(stage, least=2), "cpu", 3, options, limit=0.0)[1] == 2
    assert gpu.side(stage, "cpu", 3, options, limit=1000.0)[1] == 3
    assert gpu.side(stage, "cpu", 3, options)[1] == 3


def test_the_profile_is_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([*DRY, "--device", "cpu", "--profile", "--stages", "dp_sgd"]) == 0
    out = capsys.readouterr().out
    assert (
        "dp_sgd: 2 steps" in out
        and "aten::convolution_backward" in out
        and "aten::nonzero 2.00" in out
    )


def test_waits_are_told_by_line_of_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def arange(*given: int) -> torch.Tensor:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return torch.ones(*given, dtype=torch.long)

    monkeypatch.setattr(gpu_clock, "_telling", nullcontext)
    monkeypatch.setattr(gpu_stages.torch, "arange", arange)
    found = gpu_clock.waits(lambda: [gpu_stages.images(4) for _ in range(3)])
    assert sum(found.values()) == 6 and all(
        place.startswith("benchmarks/gpu_stages.py:") for place in found
    )

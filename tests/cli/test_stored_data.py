"""``verify`` holds the data against their digest, where they are on this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privdd.cli.compose import compose_config
from privdd.cli.run import run_training
from privdd.cli.stored_data import compare_stored_data
from privdd.runtime.files import read_json
from privdd.verify import main


def write_npz(file: Path, seed: int) -> None:
    images = np.random.default_rng(seed).random((80, 8, 8)).astype(np.float32)
    np.savez(file, x=images, y=np.arange(80) % 4)


def test_a_swapped_file_does_not_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.npz"
    run = tmp_path / "run"
    write_npz(data, 0)
    overrides = [
        "preset=smoke",
        "partition.clients=2",
        "algo=fedavg",
        "privacy=none",
        "model=mlp",
        "model.width=8",
        "algo.rounds=1",
        "engine=serial",
        "data=npz",
        f"data.root={data}",
    ]
    assert run_training(compose_config("train", overrides), run, []) == 0
    assert main([str(run)]) == 0
    capsys.readouterr()
    write_npz(data, 1)
    assert main([str(run)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0].endswith("DOES NOT AGREE: 1 difference")
        and "records, labels and split" in lines[1]
    )
    data.unlink()
    assert main([str(run)]) == 0
    assert "data: " in capsys.readouterr().err, "it says that they were not compared"
    manifest = read_json(run / "manifest.json")
    assert compare_stored_data(run, {**manifest, "data": ""}) == (
        [],
        "data: the manifest holds no digest of them",
    )
    (run / "config.yaml").write_text("loop: &l [*l]")
    wrong, note = compare_stored_data(run, manifest)
    assert wrong == [] and "aliases" in note

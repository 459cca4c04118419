"""x, x_s and x_r: the parts add up, likeness by hand, classifiers learn what their input holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from privdd.core.types import Records
from privdd.reproduce import figures
from privdd.reproduce.figures import (
    FEATURE_KINDS,
    feature_analysis,
    measure_feature_kinds,
    split_records,
    train_feature_map,
)
from privdd.reproduce.train import PaperCell

CELL = PaperCell(
    "alpha 0.1",
    "algo=fedfed",
    None,
    (
        "experiment=fedfed_figure17",
        "preset=smoke",
        "data=digits",
        "data.limit=400",
        "data.test_limit=100",
        "model=convnet",
        "model.width=8",
        "partition.alpha=100",
        "partition.clients=3",
        "paper.terms.rounds=1",
        "algo=fedfed",
    ),
)


def test_parts_add_up_and_likeness_is_psnr() -> None:
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    parts = split_records(Records(x, torch.arange(5), torch.arange(5)), lambda part: 0.25 * part)
    assert torch.equal(parts["x"].x, x)
    torch.testing.assert_close(parts["x_s"].x + parts["x_r"].x, x)
    assert all(torch.equal(part.y, torch.arange(5)) for part in parts.values())


def test_a_run_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One phase A: x_s is within the bound, PSNR by hand, and a second call measures nothing."""
    monkeypatch.setattr(figures, "EPOCHS", 20)
    experiment = figures.build_row_experiment(CELL.overrides, 0)
    split = train_feature_map(experiment)
    x = experiment.test_records.x
    with torch.no_grad():
        sensitive = split(x)
    assert (
        sensitive.flatten(1).norm(dim=1) <= 0.3 * 8 * 1.0001
    ).all() and sensitive.abs().max() > 0
    found = measure_feature_kinds(experiment)
    # x - x_r = x_s
    by_hand = float(np.mean([10 * np.log10(1 / (s**2).mean()) for s in sensitive.numpy()]))
    assert found["psnr"]["x_r"] == pytest.approx(by_hand, abs=0.01)
    assert found["trained on x"]["x"] > 0.5 and all(
        0 <= v <= 1 for kind in FEATURE_KINDS for v in found[f"trained on {kind}"].values()
    )
    (tmp_path / f"feature-kinds-{CELL.folder_name(0)}.json").write_text(json.dumps(found))
    monkeypatch.setattr(figures, "measure_feature_kinds", None)
    (matrix, likeness), _ = feature_analysis([CELL], (0,), tmp_path / "rows")
    assert [row[0] for row in matrix.rows] == [*FEATURE_KINDS] and matrix.rows[0][
        1
    ] == f"{100 * found['trained on x']['x']:.1f}"
    assert likeness.rows[0] == ("x_r", "31.47", f"{found['psnr']['x_r']:.1f}")

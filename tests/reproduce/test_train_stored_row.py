"""A row is shown from its folder only where it was trained to its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from privdd.reproduce import train
from privdd.reproduce.train import PaperCell, load_stored_row


def test_a_row_without_a_model_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, progress = PaperCell("c", "algo=fedavg", None, ()), SimpleNamespace(diverged=None)
    monkeypatch.setattr(PaperCell, "folder_name", lambda self, seed: "row")
    monkeypatch.setattr(train, "build_row_experiment", lambda overrides, seed: SimpleNamespace(plan=None))
    monkeypatch.setattr(train, "load_checkpoint", lambda folder, plan: progress)
    assert load_stored_row(cell, 0, tmp_path) is None  # not begun
    (tmp_path / "row").mkdir()
    (tmp_path / "row" / "training.json").write_text("{}")
    assert load_stored_row(cell, 0, tmp_path) is not None
    progress.diverged = 3
    assert load_stored_row(cell, 0, tmp_path) is None

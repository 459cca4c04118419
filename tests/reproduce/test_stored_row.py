"""A row is shown from its folder only where it was trained to its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from privdd.reproduce import stored_row
from privdd.reproduce.plan_rows import PaperCell
from privdd.reproduce.stored_row import stored


def test_a_row_without_a_model_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, progress = PaperCell("c", "algo=fedavg", None, ()), SimpleNamespace(diverged=None)
    monkeypatch.setattr(PaperCell, "folder", lambda self, seed: "row")
    monkeypatch.setattr(stored_row, "experiment_of", lambda overrides, seed: SimpleNamespace(plan=None))
    monkeypatch.setattr(stored_row, "load", lambda folder, plan: progress)
    assert stored(cell, 0, tmp_path) is None  # not begun
    (tmp_path / "row").mkdir()
    (tmp_path / "row" / "training.json").write_text("{}")
    assert stored(cell, 0, tmp_path) is not None
    progress.diverged = 3
    assert stored(cell, 0, tmp_path) is None

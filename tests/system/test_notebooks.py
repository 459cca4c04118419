"""Every notebook runs from top to bottom; a broken cell fails."""

from __future__ import annotations

import os
from pathlib import Path

import jupytext
import nbclient
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


def run(notebook: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    nbclient.NotebookClient(notebook, timeout=1000, resources={"metadata": {"path": str(folder)}}).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(jupytext.read(path), tmp_path, monkeypatch)


def test_a_broken_cell_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = jupytext.reads("# %%\nassert 1 == 2\n", fmt="py:percent")
    broken.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        run(broken, tmp_path, monkeypatch)


def test_all_five_are_there() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]

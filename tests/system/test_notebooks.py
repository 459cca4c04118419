"""Every notebook runs from top to bottom, shows what its committed twin shows, and a broken cell
fails.

Cells run here in one process, as a kernel would run them; one notebook, and the broken one, have a
kernel of their own."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
ALONE = "04_is_the_printed_epsilon_true"  # the quickest


def twin(path: Path) -> Any:
    return nbformat.read(path.with_suffix(".ipynb"), as_version=4)


def shape(text: str) -> str:
    """A text without its numbers, addresses and line breaks: those may differ from machine to
    machine."""
    return (
        re.sub(r"[\d.]+(e[-+]?\d+)?|\binf\b", "#", re.sub(r"0x[0-9a-f]+", "#", text))
        .replace("\n", " ")
        .replace(" ", "")
    )


def shown(cell: Any) -> dict[str, str]:
    """What the twin's cell shows: kind -> text."""
    (result,) = [one for one in cell.outputs if one.output_type == "execute_result"] or [
        {"data": {}}
    ]
    return dict(result["data"])


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.stem != ALONE], ids=lambda path: path.stem
)
def test_a_notebook_runs_and_shows_what_its_twin_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    shell = InteractiveShell()
    pairs = list(zip(jupytext.read(path).cells, twin(path).cells, strict=True))
    for cell, other in pairs:
        if cell.cell_type == "code":
            done = shell.run_cell(cell.source, store_history=False)
            done.raise_error()
            data, _ = (
                shell.display_formatter.format(done.result) if done.result is not None else ({}, {})
            )
            assert set(data) == set(shown(other)) or "image/png" in shown(other), cell.source
            kind = "text/markdown" if "text/markdown" in data else "text/plain"
            if set(data) <= {"text/plain", "text/markdown"} and data:
                assert shape(data[kind]) == shape(shown(other)[kind])
    for name in {"signs"} - before:  # a module of the notebook's own
        sys.modules.pop(name, None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_twin_has_the_same_cells_and_was_executed(path: Path) -> None:
    """After a change: ``python tools/notebooks.py``."""
    source = jupytext.read(path)
    made = twin(path)
    assert [(one.cell_type, one.source) for one in source.cells] == [
        (one.cell_type, one.source) for one in made.cells
    ]
    code = [one for one in made.cells if one.cell_type == "code"]
    assert all(one.execution_count for one in code) and any(one.outputs for one in code)
    outputs = [out for one in code for out in one.outputs]
    assert not [out for out in outputs if out.output_type == "error"]
    text = nbformat.writes(made)
    assert len(text) < 400_000 and "/tmp" not in text and str(ROOT) not in text


def kernel(notebook: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    nbclient.NotebookClient(
        notebook, timeout=1000, resources={"metadata": {"path": str(folder)}}
    ).execute()


def test_a_notebook_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(jupytext.read(ROOT / "notebooks" / f"{ALONE}.py"), tmp_path, monkeypatch)


def test_a_broken_cell_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = jupytext.reads("# %%\nassert 1 == 2\n", fmt="py:percent")
    broken.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        kernel(broken, tmp_path, monkeypatch)


def test_all_five_are_there() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]

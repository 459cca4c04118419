"""``python tools/notebooks.py [NAME ...]``: runs notebooks/*.py and writes what they show beside
them, as .ipynb."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import jupytext
import nbclient
import nbformat

ROOT = Path(__file__).parents[1]


def executed(source: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, without what differs from run to run: times, ids, counters of
    the kernel."""
    notebook = jupytext.read(source)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            notebook, timeout=1000, resources={"metadata": {"path": folder}}
        ).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "jupytext": {"formats": "ipynb,py:percent"},
    }
    return notebook


def main(names: list[str]) -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["NO_COLOR"] = "1"
    for source in sorted((ROOT / "notebooks").glob("*.py")):
        if not names or source.stem in names:
            nbformat.write(executed(source), source.with_suffix(".ipynb"))
            print(source.with_suffix(".ipynb").relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

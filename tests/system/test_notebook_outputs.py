"""What notebooks have stored is what today's code writes: the columns of a table, the words of a
verdict. Nothing is run; ``tools/notebooks.py`` stores it anew."""

from __future__ import annotations

from pathlib import Path

import nbformat
import numpy as np

from privdd.reporting.export import LEAK_COLUMNS, LEAK_NAMES
from privdd.reporting.figures.roc_curves import RocLine, draw_roc, step_curve

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FOUR = ("feddm", "fedfed", "fedlgd", "fedrd")


def stored_outputs(name: str, kind: str) -> list[str]:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    outputs = (out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs)
    return [out["data"][kind] for out in outputs if kind in out.get("data", {})]


def test_the_stored_table_of_leaks_has_todays_columns_and_the_four_methods() -> None:
    (table,) = stored_outputs("03_membership_roc", "text/markdown")
    head, _, *rows = [line.split(" | ") for line in table.splitlines()]
    today = [LEAK_NAMES.get(name, name) for name in LEAK_COLUMNS]
    chosen = ("setting", "tpr", "epsilon", "delta", "unit")
    assert head == [name for name in today if name.startswith(chosen)]
    assert [row[0] for row in rows] == [*FOUR]


def test_the_stored_curve_has_todays_axes_and_the_four_methods() -> None:
    curve = step_curve(np.arange(4.0), np.array([False, True, False, True]))
    (axes,) = draw_roc([RocLine("attack", curve)]).axes
    (image,) = stored_outputs("03_membership_roc", "image/svg+xml")
    assert axes.get_xlabel() in image and axes.get_ylabel() in image
    assert all(name in image for name in FOUR)


def test_the_curve_of_epsilon_is_of_one_method_with_sigma_at_each_point() -> None:
    source = (NOTEBOOKS / "02_epsilon_vs_accuracy.py").read_text(encoding="utf-8")
    assert "algo=fedfed_dp" in source and "σ = {sigma:g}" in source
    (shown, *_) = stored_outputs("02_epsilon_vs_accuracy", "text/plain")
    assert all(f"{sigma}: (" in shown for sigma in (0.5, 1.0, 2.0))

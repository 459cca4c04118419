"""Accuracy against rounds and against bytes sent, one line a row, the range over seeds shaded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from privdd.reporting.figures import size
from privdd.reporting.plots import Plot, slug
from privdd.reporting.style import PERCENT, canvas, colour, dash
from privdd.reporting.words import share
from privdd.reproduce.entry_result import TableColumn
from privdd.reproduce.row_results import RowResult


def plots(column: TableColumn) -> list[Plot]:
    """None where no row of the column was trained."""
    rows = [row for row in column.rows if row.curves]
    if not rows:
        return []
    name = slug(column.name)
    ends = "; ".join(f"{label(row.cell.row)}: ends at {share(row.curve[-1])}" for row in rows)
    sizes = "; ".join(f"{label(row.cell.row)}: {size(row.uploaded[-1])}" for row in rows)
    told = "What one client has uploaded so far, on a logarithmic axis; releases without a trained model included."
    by_round, by_bytes = f"{column.name}: accuracy against rounds", f"{column.name}: accuracy against bytes sent"
    band, alt = "Mean over seeds; the band is their range.", f"Accuracy against rounds. {ends}."
    return [
        Plot(f"rounds-{name}", by_round, band, alt, _draw(rows, False)),
        Plot(f"bytes-{name}", by_bytes, told, f"Accuracy against bytes. {ends}; {sizes}", _draw(rows, True)),
    ]


def label(row: str) -> str:
    """A row without the words that every row has: "fedprox on virtual data", "fedfed on scaffold"."""
    words = row.removeprefix("algo=").split()
    if words[0] == "virtual_data":
        inner = next((word for word in words if word.startswith("algo/inner=")), "algo/inner=fedavg")
        words = [f"{inner.partition('=')[2]} on virtual data", *(word for word in words[1:] if word != inner)]
    return " ".join(words).replace(" algo/base=", " on ").replace(" algo.", " ")


def _draw(rows: Sequence[RowResult], in_bytes: bool) -> Figure:
    with canvas(4.8, 2.9 + 0.17 * len(rows)) as (figure, axes):
        for index, row in enumerate(rows):
            x = np.maximum(row.uploaded, 1.0) if in_bytes else np.arange(1, len(row.curve) + 1)
            values = np.array(list(row.curves.values()))
            axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour(index), alpha=0.12, lw=0)
            axes.plot(x, row.curve, color=colour(index), ls=dash(index), label=label(row.cell.row))
        axes.set(xlabel="uploaded by a client" if in_bytes else "round", ylabel="accuracy", ylim=(0, 1))
        axes.yaxis.set_major_formatter(PERCENT)
        if in_bytes:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
            axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside lower center", ncols=1, handlelength=2.6)
    return figure

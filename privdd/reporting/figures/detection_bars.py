"""How often an attack identifies each audited record."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from privdd.reporting.figures.canvas import figure_canvas, format_percent
from privdd.reporting.figures.style import COLUMN, MUTED, SHOWN


def draw_detection_rates(
    rates: np.ndarray, fpr: float, trials: str = "replays", width: float = COLUMN
) -> Figure:
    """How often each record is identified, the most exposed first.

    Args:
        rates: Share of the trials that hold the record, (n,) in [0, 1], falling.
        fpr: The false-positive rate of the common threshold, drawn as chance level.
        trials: The plural noun for them.
        width: In inches.
    """
    with figure_canvas(width, 0.78 * width) as (figure, axes):
        axes.bar(np.arange(1, len(rates) + 1), rates, width=0.86, color=SHOWN)
        axes.axhline(fpr, color=MUTED, lw=0.9, ls=(0, (4, 3)))
        top = min(1.0, max(1.15 * float(rates.max()), 5 * fpr, 0.05))
        axes.set(ylim=(0, top), xlim=(0.4, max(len(rates), 12) + 0.6))
        axes.set(xlabel="audited records, most exposed first", ylabel=f"identified in {trials}")
        axes.yaxis.set_major_formatter(format_percent)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.grid(axis="x", visible=False)
    return figure

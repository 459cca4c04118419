"""Accuracy after each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from privdd.reporting.figures.canvas import figure_canvas, format_percent
from privdd.reporting.figures.style import SeriesStyle, style_of


def draw_accuracy(
    series: Mapping[str, Sequence[float]],
    width: float = 4.6,
    styles: Mapping[str, SeriesStyle] | None = None,
) -> Figure:
    """Test accuracy (0 to 1) after each round, one line per run. styles: by label; by place if
    None."""
    with figure_canvas(width, 2.7) as (figure, axes):
        for index, (label, values) in enumerate(series.items()):
            rounds = np.arange(1, len(values) + 1)
            style = (styles or {}).get(label, style_of(index))
            every = max(1, len(values) // 12)
            properties: dict[str, Any] = {
                "color": style.colour,
                "ls": style.dash,
                "marker": style.marker,
                "ms": 4,
            }
            axes.plot(rounds, values, markevery=every, label=label, **properties)
        axes.set(xlabel="communication round", ylabel="test accuracy", ylim=(0, 1))
        axes.yaxis.set_major_formatter(format_percent)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(series) > 1:
            figure.legend(
                loc="outside lower center", ncols=2 if len(series) <= 4 else 1, handlelength=2.6
            )
    return figure

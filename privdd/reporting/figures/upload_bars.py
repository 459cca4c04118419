"""Bytes that a client uploads."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from privdd.reporting import wording
from privdd.reporting.figures.canvas import figure_canvas
from privdd.reporting.figures.style import COLUMN, INK, SeriesStyle, style_of


def draw_bytes(
    up: Mapping[str, float], width: float = COLUMN, styles: Mapping[str, SeriesStyle] | None = None
) -> Figure:
    """Bytes that one client uploads over the whole run, one bar per run. styles: by label; by place
    if None."""
    with figure_canvas(width, 0.6 + 0.34 * len(up)) as (figure, axes):
        names = list(up)
        values = list(up.values())
        colours = [
            (styles or {}).get(name, style_of(index)).colour for index, name in enumerate(names)
        ]
        bars = axes.barh(names, values, color=colours, height=0.62)
        axes.bar_label(
            bars, [wording.format_bytes(v) for v in values], padding=4, fontsize=8.5, color=INK
        )
        axes.set(xlim=(0, 1.22 * max(*values, 1)), xticks=[])
        axes.invert_yaxis()
        axes.grid(False)
        axes.spines[["bottom"]].set_visible(False)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
    return figure

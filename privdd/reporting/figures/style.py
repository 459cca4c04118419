"""The style that all figures share: colours, dashes, marks, matplotlib's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Figures are drawn in the light palette. ``themed_svg`` replaces each of its colours by a CSS
# variable, so that one drawing inside the page follows the reader's light or dark setting;
# ``save_figure`` writes files that stand alone on white.
INK = "#1b2024"
MUTED = "#5b656e"
GRID = "#d9dfe4"
PAPER = "#fffffe"
# Okabe and Ito (2008), darkened where a colour falls short of 3:1 on white; order: most apart
# first.
SERIES = ("#0072b1", "#d45e00", "#00805f", "#b0568c", "#8a6d00", "#2f9bd1", "#5f4bb6", "#6b6b6a")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "v", "P", "X")
CLAIM = SERIES[4]
PROVEN = SERIES[0]
SHOWN = SERIES[1]
COLUMN = 3.3  # inches: a column of a paper
MATPLOTLIB_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "privdd",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 8.2,
    "figure.dpi": 100,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


@dataclass(frozen=True)
class SeriesStyle:
    """The look of one setting, the same on all figures of a page: legends of different figures can
    be read together."""

    colour: str
    dash: str | tuple[int, tuple[float, ...]]
    marker: str


def style_of(index: int) -> SeriesStyle:
    """The look of the setting at this place on a page; the first 24 differ."""
    return SeriesStyle(series_colour(index), series_dash(index), MARKERS[index % len(MARKERS)])


def series_colour(index: int) -> str:
    return SERIES[index % len(SERIES)]


def series_dash(index: int) -> str | tuple[int, tuple[float, ...]]:
    """A line style of its own for series whose colour repeats or cannot be seen."""
    return DASHES[index % len(DASHES)]

"""The figure and its axes that each drawing starts from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from privdd.reporting.figures.rendering import Drawing
from privdd.reporting.figures.style import MATPLOTLIB_SETTINGS


def format_percent(value: float, _: object = None) -> str:
    """0.001 as "0.1 %"."""
    return f"{100 * value:.6g} %"


@contextmanager
def figure_canvas(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure of width x height inches and one axes, drawn in the project's style, never shown."""
    with matplotlib.rc_context(MATPLOTLIB_SETTINGS):
        figure = Drawing(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.add_subplot()

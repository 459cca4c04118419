"""Accuracy against epsilon: a mark for each setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from privdd.reporting.figures.canvas import figure_canvas, format_percent
from privdd.reporting.figures.epsilon_axis import EpsilonAxis
from privdd.reporting.figures.style import COLUMN, MUTED, PAPER, SeriesStyle, style_of

# points from a mark to the middle of its note, in the order in which they are tried
NOTE_OFFSETS = ((0, 9), (0, -9), (0, 18), (0, -18), (0, 27), (0, -27))
# In addition to a method's own marks; in the legend if they are drawn.
FRONTIER_MARKS: Mapping[str, Mapping[str, Any]] = {
    "shown": {"marker": ">", "ls": "", "ms": 6, "mfc": PAPER, "label": "shown (at least)"},
    "claim": {
        "marker": "D",
        "ls": (0, (3, 2)),
        "ms": 9,
        "mfc": "none",
        "label": "the paper's claim",
    },
    "public": {
        "marker": "o",
        "ls": "",
        "ms": 8,
        "fillstyle": "left",
        "markerfacecoloralt": PAPER,
        "label": "public data",
    },
    "trusted": {
        "marker": "s",
        "ls": "",
        "ms": 13,
        "mfc": "none",
        "label": "the server sees less than uploads",
    },
    "published": {"marker": "*", "ls": "", "ms": 10, "label": "published by others"},
}


@dataclass(frozen=True)
class FrontierPoint:
    """One setting of one method over its seeds: accuracies in [0, 1], epsilons >= 0 or infinite.

    public: whether it was built on public data; trusted: whether the server is trusted to see less
        than every upload;
    label: of the setting, the method's name if ""; note: written at the mark, "σ = 1"; style: by
        the method's place if None.
    """

    method: str
    epsilon: float
    accuracies: tuple[float, ...]
    shown: float | None = None
    claim: float | None = None
    public: bool = False
    trusted: bool = False
    label: str = ""
    note: str = ""
    style: SeriesStyle | None = None


def draw_frontier(
    points: Sequence[FrontierPoint],
    width: float = COLUMN,
    kind: str = "global",
    published: Sequence[tuple[float, float]] = (),
) -> Figure:
    """Accuracy (of ``kind``) against epsilon, one mark per setting, joined per method: mean and
    range over seeds.

    Filled marks sit at the proven epsilon, open triangles at the shown lower bound of the
    same setting, which a bar joins to it, large open diamonds on dashed lines at the paper's claim;
    half-filled marks stand for public data, squares round a mark for a server that sees less than
    every upload, stars for ``published`` figures of others, (epsilon, accuracy)."""
    epsilons = [epsilon for epsilon, _ in published]
    for point in points:
        epsilons += _point_epsilons(point)
    axis = EpsilonAxis(epsilons)
    methods = list(dict.fromkeys(point.method for point in points))
    with figure_canvas(width, 0.95 * width + 0.08 * len(points)) as (figure, axes):
        for index, method in enumerate(methods):
            settings = [point for point in points if point.method == method]
            settings.sort(key=lambda point: point.epsilon)
            _draw_frontier_curve(axes, axis, settings, index)
        handles, _ = axes.get_legend_handles_labels()
        for epsilon, accuracy in published:
            _draw_frontier_mark(axes, "published", axis.position_of(epsilon), accuracy, color=MUTED)
        axis.set_ticks(axes, "ε (mark: proven, triangle: shown)")
        axes.set_ylabel(f"accuracy ({kind})")
        axes.yaxis.set_major_formatter(format_percent)
        for name in _frontier_marks_drawn(points, published):
            handles.append(Line2D([], [], color=MUTED, **FRONTIER_MARKS[name]))
        figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=6.6)
        _separate_notes(figure, axes)
    return figure


def _separate_notes(figure: Figure, axes: Axes) -> None:
    """Move each note to the first of ``NOTE_OFFSETS`` at which it covers no note before it."""
    figure.draw_without_rendering()  # the layout fixes where a note stands, in pixels
    placed: list[Bbox] = []
    for note in axes.texts:
        for offset in NOTE_OFFSETS:
            note.set_position(offset)
            extent = note.get_window_extent()
            if not extent.count_overlaps(placed):
                break
        placed.append(extent)


def _point_epsilons(point: FrontierPoint) -> list[float]:
    epsilons = (point.epsilon, point.shown, point.claim)
    return [epsilon for epsilon in epsilons if epsilon is not None]


def _frontier_marks_drawn(points: Sequence[FrontierPoint], published: Sequence[Any]) -> list[str]:
    """Names of ``FRONTIER_MARKS`` that the legend explains."""
    is_drawn = {
        "shown": any(point.shown is not None for point in points),
        "claim": any(point.claim is not None for point in points),
        "public": any(point.public for point in points),
        "trusted": any(point.trusted for point in points),
        "published": bool(published),
    }
    return [name for name in FRONTIER_MARKS if is_drawn[name]]


def _draw_frontier_curve(
    axes: Axes, axis: EpsilonAxis, points: Sequence[FrontierPoint], index: int
) -> None:
    """The settings of one method, joined by a thin line where there are several."""
    x = [axis.position_of(p.epsilon) for p in points]
    mean = [float(np.mean(p.accuracies)) for p in points]
    if len(points) > 1:
        axes.plot(x, mean, color=MUTED, lw=0.9, zorder=1)
    named: set[str] = set()
    for place, height, point in zip(x, mean, points, strict=True):
        label = point.label or point.method
        _draw_frontier_point(
            axes, axis, (place, height), point, index, "" if label in named else label
        )
        named.add(label)


def _draw_frontier_point(
    axes: Axes,
    axis: EpsilonAxis,
    at: tuple[float, float],
    point: FrontierPoint,
    index: int,
    label: str,
) -> None:
    place, height = at
    style = point.style or style_of(index)
    reach = [[max(height - min(point.accuracies), 0.0)], [max(max(point.accuracies) - height, 0.0)]]
    properties: dict[str, Any] = {
        "color": style.colour,
        "ls": style.dash,
        "marker": style.marker,
        "ms": 6,
    }
    axes.errorbar([place], [height], yerr=reach, capsize=3, label=label or None, **properties)
    if point.shown is not None:
        low = axis.position_of(point.shown)
        bar: dict[str, Any] = {"lw": 5, "alpha": 0.28, "solid_capstyle": "butt", "zorder": 1}
        axes.plot([low, place], [height, height], color=style.colour, **bar)
        _draw_frontier_mark(axes, "shown", low, height, color=style.colour, zorder=4)
    if point.public:
        _draw_frontier_mark(
            axes, "public", place, height, color=style.colour, zorder=3, marker=style.marker
        )
    if point.trusted:
        _draw_frontier_mark(axes, "trusted", place, height, color=style.colour)
    if point.note:
        properties = {
            "textcoords": "offset points",
            "xytext": NOTE_OFFSETS[0],
            "va": "center",
            "ha": "center",
            "fontsize": 6.6,
        }
        axes.annotate(point.note, (place, height), color=style.colour, **properties)
    if point.claim is not None:
        _draw_frontier_mark(
            axes, "claim", axis.position_of(point.claim), height, color=style.colour
        )


def _draw_frontier_mark(axes: Axes, name: str, x: Any, y: Any, **properties: Any) -> None:
    axes.plot(x, y, **{**FRONTIER_MARKS[name], "label": None, **properties})

"""Figures of epsilon: claimed, proven and shown on one axis, and epsilon against accuracy.

The axis is logarithmic with two columns of its own: "0" on the left, and on the right "no limit" for
an infinite epsilon, which is shown as what it is and not as a large number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from privdd.reporting.hover import AREA
from privdd.reporting.style import ACCOUNTED, CLAIM, GRID, INK, MEASURED, MUTED, PAPER, PERCENT, canvas, colour, dash


@dataclass(frozen=True)
class StripRow:
    """One line of the strip; each epsilon is >= 0, may be infinite, and is None where there is none."""

    label: str
    claim: float | None
    accounted: float | None
    measured: float | None


@dataclass(frozen=True)
class FrontierPoint:
    """One setting of one method over its seeds: accuracies in [0, 1], epsilons >= 0 or infinite."""

    method: str
    epsilon: float
    accuracies: tuple[float, ...]
    measured: float | None = None
    claim: float | None = None


class EpsilonAxis:
    """Positions of epsilons: log10 between two decades, 0 and infinity in columns beside them."""

    def __init__(self, values: Iterable[float | None]) -> None:
        finite = [v for v in values if v is not None and 0 < v < math.inf]
        low = math.floor(math.log10(min(finite, default=0.1)))
        high = math.ceil(math.log10(max(finite, default=10)))
        self.low, self.high = max(min(low, -1), -4), max(high, 1)

    @property
    def zero(self) -> float:
        return self.low - 0.5

    @property
    def infinite(self) -> float:
        return self.high + 0.55

    def at(self, epsilon: float) -> float:
        if math.isinf(epsilon):
            return self.infinite
        return self.zero if epsilon <= 10.0**self.low / 3 else max(math.log10(epsilon), self.low - 0.3)

    def dress(self, axes: Axes, label: str) -> None:
        """Ticks, the column of no limit, and the label."""
        step = 1 if self.high - self.low <= 6 else 2
        decades = list(range(self.low, self.high + 1, step))
        names = [f"{10.0**d:g}" if -4 < d < 5 else f"1e{d}" for d in decades]
        axes.set_xticks([self.zero, *decades, self.infinite], ["0", *names, "∞"])
        axes.axvspan(self.high + 0.2, self.high + 0.9, color=GRID, alpha=0.55, lw=0, zorder=0)
        axes.set_xlim(self.zero - 0.25, self.high + 0.9)
        axes.set_xlabel(label)


def strip(rows: Sequence[StripRow], width: float = 5.2) -> Figure:
    """For each row: the claim (diamond), the proven upper bound (bar), the measured lower bound (arrow).

    A measured bound to the right of a claim or of a proven bound contradicts it: a bold line joins them.
    """
    axis = EpsilonAxis(value for row in rows for value in (row.claim, row.accounted, row.measured))
    with canvas(width, 1.25 + 0.42 * len(rows)) as (figure, axes):
        for height, row in enumerate(rows):
            _strip_row(axes, axis, row, height)
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.patch.set_gid(AREA)
        axis.dress(axes, "ε (smaller is more private; ∞ = no limit proven)")
        axes.grid(axis="y", visible=False)
        figure.legend(handles=_strip_legend(rows), loc="outside lower center", ncols=3, handletextpad=0.3)
    return figure


def _strip_row(axes: Axes, axis: EpsilonAxis, row: StripRow, height: int) -> None:
    if row.accounted is not None:
        end = axis.at(row.accounted)
        axes.plot([axis.zero, end], [height, height], color=ACCOUNTED, lw=5, alpha=0.28, solid_capstyle="butt")
        axes.plot(end, height, marker="|", ms=13, mew=2.6, color=ACCOUNTED)
    if row.measured is not None:
        for bound in (row.claim, row.accounted):
            if bound is not None and bound < row.measured:
                ends = [axis.at(bound), axis.at(row.measured)]
                axes.plot(ends, [height, height], color=MEASURED, lw=2.2, solid_capstyle="butt")
        axes.plot(axis.at(row.measured), height, marker=">", ms=8, color=MEASURED, zorder=4)
    if row.claim is not None:
        axes.plot(axis.at(row.claim), height, marker="D", ms=7.5, mfc=PAPER, mec=CLAIM, mew=1.8, zorder=3)


def _strip_legend(rows: Sequence[StripRow]) -> list[Line2D]:
    """Only what is drawn."""
    looks: dict[str, dict[str, Any]] = {
        "claim": {"marker": "D", "ms": 7, "mfc": PAPER, "mec": CLAIM, "mew": 1.8, "label": "claimed or stated"},
        "accounted": {"marker": "|", "ms": 11, "mew": 2.6, "color": ACCOUNTED, "label": "proven (at most)"},
        "measured": {"marker": ">", "ms": 8, "color": MEASURED, "label": "shown (at least)"},
    }
    drawn = (look for name, look in looks.items() if any(getattr(row, name) is not None for row in rows))
    return [Line2D([], [], ls="", **look) for look in drawn]


def frontier(points: Sequence[FrontierPoint], width: float = 5.2) -> Figure:
    """Accuracy against epsilon, one curve per method: mean and range over seeds.

    Filled marks sit at the accounted epsilon, arrows at the measured lower bound of the same setting,
    dashed lines at the paper's claim.
    """
    axis = EpsilonAxis(v for p in points for v in (p.epsilon, p.measured, p.claim))
    methods = list(dict.fromkeys(p.method for p in points))
    with canvas(width, 3.6 + 0.2 * len(methods)) as (figure, axes):
        for index, method in enumerate(methods):
            mine = sorted((p for p in points if p.method == method), key=lambda p: p.epsilon)
            _frontier_curve(axes, axis, mine, index)
        axis.dress(axes, "epsilon")
        axes.set_ylabel("accuracy")
        axes.yaxis.set_major_formatter(PERCENT)
        handles, _ = axes.get_legend_handles_labels()
        grey = []
        if any(p.measured is not None for p in points):
            grey.append(Line2D([], [], marker=">", ls="", ms=6, mfc=PAPER, mec=MUTED, label="shown (at least)"))
        if any(p.claim is not None for p in points):
            grey.append(
                Line2D([], [], marker="D", ls=(0, (3, 2)), ms=5, mfc=PAPER, color=MUTED, label="the paper's claim")
            )
        figure.legend(handles=handles + grey, loc="outside lower center", ncols=2)
    return figure


def _frontier_curve(axes: Axes, axis: EpsilonAxis, points: Sequence[FrontierPoint], index: int) -> None:
    tint = colour(index)
    mean = np.array([np.mean(p.accuracies) for p in points])
    spread = np.array([[m - min(p.accuracies), max(p.accuracies) - m] for m, p in zip(mean, points, strict=True)]).T
    x = [axis.at(p.epsilon) for p in points]
    label = f"{points[0].method}: accounted"
    axes.errorbar(
        x, mean, yerr=np.maximum(spread, 0), color=tint, ls=dash(index), marker="o", ms=6, capsize=3, label=label
    )
    for place, height, point in zip(x, mean, points, strict=True):
        if point.measured is not None:
            low = axis.at(point.measured)
            axes.plot([low, place], [height, height], color=tint, lw=0.8, alpha=0.6)
            axes.plot(low, height, marker=">", ms=6, mfc=PAPER, mec=tint)
    claimed = [(axis.at(p.claim), y) for p, y in zip(points, mean, strict=True) if p.claim is not None]
    if claimed:
        axes.plot(*zip(*claimed, strict=True), color=tint, ls=(0, (3, 2)), lw=1.3, marker="D", ms=5, mfc=PAPER)

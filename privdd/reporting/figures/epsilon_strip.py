"""Epsilons claimed, proven and shown of a run and of its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from privdd.reporting import wording
from privdd.reporting.figures.canvas import figure_canvas
from privdd.reporting.figures.epsilon_axis import EpsilonAxis
from privdd.reporting.figures.style import CLAIM, INK, PAPER, PROVEN, SHOWN

STRIP_MARKS: Mapping[str, Mapping[str, Any]] = {
    "claim": {
        "marker": "D",
        "ms": 7,
        "mfc": PAPER,
        "mec": CLAIM,
        "mew": 1.8,
        "label": "claimed or stated",
    },
    "proven": {
        "marker": "|",
        "ms": 11,
        "mew": 2.6,
        "color": PROVEN,
        "label": "proven (at most)",
    },
    "shown": {"marker": ">", "ms": 8, "color": SHOWN, "label": "shown (at least)"},
}


@dataclass(frozen=True)
class StripRow:
    """One line of the strip; each epsilon is >= 0, may be infinite, and is None where there is
    none."""

    label: str
    claim: float | None
    proven: float | None
    shown: float | None


def draw_epsilon_strip(rows: Sequence[StripRow], width: float = 5.2) -> Figure:
    """For each row: the claim (diamond), the proven upper bound (bar), the shown lower bound
    (arrow).

    A shown bound to the right of a claim or of a proven bound contradicts it: a bold line joins
    them."""
    axis = EpsilonAxis(value for row in rows for value in (row.claim, row.proven, row.shown))
    with figure_canvas(width, 1.25 + 0.42 * len(rows)) as (figure, axes):
        for height, row in enumerate(rows):
            _draw_strip_row(axes, axis, row, height)
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axis.set_ticks(axes, "ε (smaller is more private; ∞ = no proven bound)")
        axes.grid(axis="y", visible=False)
        figure.legend(
            handles=_draw_strip_legend(rows), loc="outside lower center", ncols=3, handletextpad=0.3
        )
    return figure


def _draw_strip_row(axes: Axes, axis: EpsilonAxis, row: StripRow, height: int) -> None:
    if row.proven is not None:
        end = axis.position_of(row.proven)
        axes.plot(
            [axis.zero_position, end],
            [height, height],
            color=PROVEN,
            lw=5,
            alpha=0.28,
            solid_capstyle="butt",
        )
        axes.plot(end, height, marker="|", ms=13, mew=2.6, color=PROVEN)
    if row.shown is not None:
        for bound in (row.claim, row.proven):
            if bound is not None and bound < row.shown:
                ends = [axis.position_of(bound), axis.position_of(row.shown)]
                axes.plot(ends, [height, height], color=SHOWN, lw=2.2, solid_capstyle="butt")
        axes.plot(axis.position_of(row.shown), height, marker=">", ms=8, color=SHOWN, zorder=4)
    if row.claim is not None:
        axes.plot(
            axis.position_of(row.claim),
            height,
            marker="D",
            ms=7.5,
            mfc=PAPER,
            mec=CLAIM,
            mew=1.8,
            zorder=3,
        )


def _draw_strip_legend(rows: Sequence[StripRow]) -> list[Line2D]:
    """Only what is drawn."""
    handles = []
    for name, properties in STRIP_MARKS.items():
        if any(getattr(row, name) is not None for row in rows):
            handles.append(Line2D([], [], ls="", **properties))
    return handles


def draw_epsilon_scale(
    row: StripRow, claim_word: str = "claimed", bound_word: str = "proven", width: float = 5.0
) -> Figure:
    """The three epsilons of a run on one line, each with its number.

    The proven upper bound is a disc, the shown lower bound an arrow, the claim a diamond; a bar
    joins shown and proven, between which the true value lies, and is bold where they cross.

    Args:
        row: The epsilons; None is not drawn.
        claim_word: What the claim is called, "claimed" or "stated".
        bound_word: What the upper bound is called, "proven", or "stated" if a test contradicts it.
        width: In inches.
    """
    axis = EpsilonAxis((row.claim, row.proven, row.shown))
    with figure_canvas(width, 1.25) as (figure, axes):
        labels = []
        if row.claim is not None:
            place = axis.position_of(row.claim)
            properties: dict[str, Any] = {"ms": 8, "mfc": PAPER, "mec": CLAIM, "mew": 1.8}
            axes.plot(place, 0, marker="D", zorder=6, **properties)
            labels.append((place, 0.5, f"{claim_word} {_short(row.claim)}", CLAIM))
        if row.proven is not None:
            place = axis.position_of(row.proven)
            text = _name_bound(row.proven, bound_word)
            axes.plot(place, 0, marker="o", ms=9, color=PROVEN, zorder=4)
            labels.append((place, -0.06, text, PROVEN))
        if row.shown is not None:
            place = axis.position_of(row.shown)
            axes.plot(place, 0, marker=">", ms=9, color=SHOWN, zorder=5)
            labels.append((place, 1.06, f"shown ≥ {_short(row.shown)}", SHOWN))
        if row.proven is not None and row.shown is not None:
            ends = [axis.position_of(row.shown), axis.position_of(row.proven)]
            crossed = row.shown > row.proven
            axes.plot(ends, [0, 0], color=SHOWN, lw=6, alpha=0.9 if crossed else 0.28, zorder=2)
        axis.set_ticks(axes, "")
        _place_labels(axes, labels)
        axes.set(ylim=(-0.6, 3.1), yticks=[])
        axes.spines["left"].set_visible(False)
        axes.grid(False)
    return figure


def _name_bound(bound: float, word: str) -> str:
    """The upper bound in words."""
    if math.isinf(bound):
        return "no proven bound"
    return f"{word} ≤ {_short(bound)}"


def _short(epsilon: float) -> str:
    return wording.format_number(epsilon)


def _place_labels(axes: Axes, labels: Sequence[tuple[float, float, str, str]]) -> None:
    """Write labels above their marks, each on the lowest line with room.

    labels: (position, the share of the text that lies left of it, text, colour).
    """
    left, right = axes.get_xlim()
    letter = (right - left) / 54
    lines: list[list[tuple[float, float]]] = []
    for place, share, text, colour in labels:
        width = letter * len(text)
        start = min(max(place - share * width, left), right - width)
        span = (start, start + width)
        line = next((n for n, spans in enumerate(lines) if _has_room(spans, span, letter)), None)
        if line is None:
            line = len(lines)
            lines.append([])
        lines[line].append(span)
        properties: dict[str, Any] = {"color": colour, "fontsize": 10.5, "fontweight": "bold"}
        axes.text(
            start + width / 2, 0.75 + 0.8 * line, text, ha="center", va="center", **properties
        )
        if line:
            axes.plot([place, place], [0.3, 0.45 + 0.8 * line], color=colour, lw=0.8, zorder=1)


def _has_room(spans: Sequence[tuple[float, float]], new: tuple[float, float], gap: float) -> bool:
    return all(new[1] + gap < start or new[0] > end + gap for start, end in spans)

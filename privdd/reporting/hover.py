"""Values that show when a pointer rests on a figure, and curves that can be switched off: SVG and CSS, no script.

A figure is cut into zones. Each zone holds what can be read there: a mark on every curve, and a small table. The page's
style shows them while the pointer is over the zone; the drawing itself is the same without them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import escape
from matplotlib.axes import Axes

AREA = "area"  # id of the drawn rectangle that the axes span
MOST = 9  # curves that the page's style can switch off by themselves
LETTER, LINE, PAD = 4.7, 11.5, 5.0  # points: width of a letter, height of a line, margin of the table


@dataclass(frozen=True)
class Toggle:
    """A curve that can be switched off: its name, its number among the figure's curves, and its colour's variable."""

    label: str
    number: int
    tint: str


@dataclass(frozen=True)
class Zone:
    """A rectangle in data coordinates (x, then y), None for the edge of the axes.

    head: first line; lines: (number of the curve, text); marks: (number of the curve, x, y) in data coordinates;
    grey: the number of a curve that is drawn in grey.
    """

    x: tuple[float, float] | None
    y: tuple[float, float] | None
    head: str
    lines: tuple[tuple[int, str], ...]
    marks: tuple[tuple[int, float, float], ...] = ()
    grey: int = -1


def curve_id(number: int, part: str) -> str:
    """The id of a drawn part of a curve ("line", "band"), which ``classed`` makes a class of."""
    return f"c{number}-{part}"


def classed(svg: str) -> str:
    """The drawing with a class for each part of a curve, so that a style can hide all of them at once."""
    return re.sub(r'<g id="([^"]*-)?(c\d)-(line|band)"', r'<g class="\2" id="\1\2-\3"', svg)


def layer(svg: str, axes: Axes, zones: Sequence[Zone]) -> str:
    """What to add at the end of a drawing. svg: as it was drawn, with the axes' own rectangle named ``AREA``."""
    found = re.search(rf'id="{AREA}">\s*<path d="([^"]*)"', svg)
    if not found or not zones:
        return ""
    at = [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", found.group(1))]
    box = (min(at[0::2]), min(at[1::2]), max(at[0::2]), max(at[1::2]))
    return "".join(_zone(one, axes, box) for one in zones)


Box = tuple[float, float, float, float]  # left, top, right, bottom, in points


def _place(axes: Axes, box: Box, x: float, y: float) -> tuple[float, float]:
    across, up = (axes.transScale + axes.transLimits).transform((x, y))
    return box[0] + across * (box[2] - box[0]), box[3] - up * (box[3] - box[1])


def _zone(zone: Zone, axes: Axes, box: Box) -> str:
    xs, ys = zone.x or axes.get_xlim(), zone.y or axes.get_ylim()
    corners = [_place(axes, box, x, y) for x, y in zip(xs, ys)]
    left, right = sorted(min(max(x, box[0]), box[2]) for x, _ in corners)
    top, bottom = sorted(min(max(y, box[1]), box[3]) for _, y in corners)
    marks = ((number, *_place(axes, box, x, y)) for number, x, y in zone.marks)
    dots = "".join(
        f'<circle class="c{number} dot{" grey" if number == zone.grey else ""}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        for number, x, y in marks
        if box[0] - 1 <= x <= box[2] + 1 and box[1] - 1 <= y <= box[3] + 1
    )
    area = f'<rect class="zone" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"/>'
    return f'<g class="stop">{area}{dots}{_table(zone, box, (left + right) / 2, top if zone.y else box[1])}</g>'


def _table(zone: Zone, box: Box, middle: float, top: float) -> str:
    """Beside the middle, on the side that has more room."""
    texts = [("head", zone.head), *((f"c{number}" if number >= 0 else "plain", text) for number, text in zone.lines)]
    wide = min(LETTER * max(len(text) for _, text in texts) + 2 * PAD, box[2])
    tall = LINE * len(texts) + PAD
    left = middle + 8 if middle < (box[0] + box[2]) / 2 else middle - 8 - wide
    left = min(max(left, 1), box[2] - wide)
    top = min(max(top + 2, 1), box[3] - tall)
    rows = "".join(
        f'<text class="{kind}" x="{left + PAD:.1f}" y="{top + LINE * (i + 0.9):.1f}">{escape(text)}</text>'
        for i, (kind, text) in enumerate(texts)
    )
    return (
        f'<g class="tip"><rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}" rx="3"/>{rows}</g>'
    )

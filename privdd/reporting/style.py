"""One look for every figure: palette, deterministic SVG, light and dark, and values that show under a pointer without a script."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

from privdd.runtime.files import write_bytes

# --- hover -------------------------------------------------------------------------------------
# Values that show when a pointer rests on a figure, and curves that can be switched off: SVG and CSS, no script.
#
# A figure is cut into zones. Each zone holds what can be read there: a mark on every curve, and a small table. The page's
# style shows them while the pointer is over the zone; the drawing itself is the same without them.


AREA = "area"  # id of the drawn rectangle that the axes span
MOST = 9  # curves that the page's style can switch off by themselves
LETTER, LINE, PAD = 4.7, 11.5, 5.0  # points: width of a letter, height of a line, margin of the table


@dataclass(frozen=True)
class CurveToggle:
    """A curve that can be switched off: its name, its number among the figure's curves, and its colour's variable."""

    label: str
    number: int
    tint: str


@dataclass(frozen=True)
class HoverZone:
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
    """The id of a drawn part of a curve ("line", "band"), which ``add_curve_classes`` makes a class of."""
    return f"c{number}-{part}"


def add_curve_classes(svg: str) -> str:
    """The drawing with a class for each part of a curve, so that a style can hide all of them at once."""
    return re.sub(r'<g id="([^"]*-)?(c\d)-(line|band)"', r'<g class="\2" id="\1\2-\3"', svg)


def hover_layer(svg: str, axes: Axes, zones: Sequence[HoverZone]) -> str:
    """What to add at the end of a drawing. svg: as it was drawn, with the axes' own rectangle named ``AREA``."""
    found = re.search(rf'id="{AREA}">\s*<path d="([^"]*)"', svg)
    if not found or not zones:
        return ""
    at = [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", found.group(1))]
    box = (min(at[0::2]), min(at[1::2]), max(at[0::2]), max(at[1::2]))
    return "".join(_zone_markup(one, axes, box) for one in zones)


Box = tuple[float, float, float, float]  # left, top, right, bottom, in points


def _to_svg_position(axes: Axes, box: Box, x: float, y: float) -> tuple[float, float]:
    across, up = (axes.transScale + axes.transLimits).transform((x, y))
    return box[0] + across * (box[2] - box[0]), box[3] - up * (box[3] - box[1])


def _zone_markup(zone: HoverZone, axes: Axes, box: Box) -> str:
    xs, ys = zone.x or axes.get_xlim(), zone.y or axes.get_ylim()
    corners = [_to_svg_position(axes, box, x, y) for x, y in zip(xs, ys)]
    left, right = sorted(min(max(x, box[0]), box[2]) for x, _ in corners)
    top, bottom = sorted(min(max(y, box[1]), box[3]) for _, y in corners)
    marks = ((number, *_to_svg_position(axes, box, x, y)) for number, x, y in zone.marks)
    dots = "".join(
        f'<circle class="c{number} dot{" grey" if number == zone.grey else ""}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        for number, x, y in marks
        if box[0] - 1 <= x <= box[2] + 1 and box[1] - 1 <= y <= box[3] + 1
    )
    area = f'<rect class="zone" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"/>'
    return (
        f'<g class="stop">{area}{dots}{_tooltip_markup(zone, box, (left + right) / 2, top if zone.y else box[1])}</g>'
    )


def _tooltip_markup(zone: HoverZone, box: Box, middle: float, top: float) -> str:
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


# --- style -------------------------------------------------------------------------------------
# One look for every figure: a colour-blind-safe palette, deterministic SVG, light and dark.
#
# Figures are drawn in the light palette. ``themed_svg`` replaces each of its colours by a CSS variable, so
# that one drawing inside the page follows the reader's light or dark setting; ``save_figure`` writes the plain
# SVG and PNG files, which stand alone on white.


INK, MUTED, GRID, PAPER = "#1b2024", "#5b656e", "#d9dfe4", "#fffffe"
# Okabe and Ito (2008), darkened where a colour falls short of 3:1 on white; order: most apart first.
SERIES = ("#0072b1", "#d45e00", "#00805f", "#b0568c", "#8a6d00", "#2f9bd1", "#5f4bb6", "#6b6b6a")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
CLAIM, ACCOUNTED, MEASURED = SERIES[4], SERIES[0], SERIES[1]
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"} | {c: f"s{i}" for i, c in enumerate(SERIES)}
_RC: dict[Any, Any] = {
    "svg.hashsalt": "privdd",
    "svg.fonttype": "none",
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


class Drawing(Figure):
    """A figure that a notebook shows as a picture, whether or not pyplot was imported."""

    def _repr_png_(self) -> bytes:
        return to_png(self)


@contextmanager
def figure_canvas(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure of width x height inches and one axes, drawn in the project's style, never shown."""
    with matplotlib.rc_context(_RC):
        figure = Drawing(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.add_subplot()


def format_percent(value: float, _: object = None) -> str:
    """0.001 as "0.1 %"."""
    return f"{100 * value:.6g} %"


PERCENT = FuncFormatter(format_percent)


def series_colour(index: int) -> str:
    return SERIES[index % len(SERIES)]


def series_dash(index: int) -> str | tuple[int, tuple[float, ...]]:
    """A line style of its own for series whose colour repeats or cannot be seen."""
    return DASHES[index % len(DASHES)]


def to_svg(figure: Figure) -> str:
    """The same bytes for the same drawing: fixed salt, no date, no metadata."""
    silent = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    return _render_figure(figure, "svg", 0.04, silent).decode()


def to_png(figure: Figure) -> bytes:
    return _render_figure(figure, "png", 0.1, {"Software": None})


def _render_figure(figure: Figure, kind: str, pad: float, metadata: dict[str, None]) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes, and is whole in the page's own text.
        warnings.filterwarnings("ignore", message="Glyph|constrained_layout not applied")
        figure.savefig(buffer, format=kind, dpi=150, bbox_inches="tight", pad_inches=pad, metadata=metadata)
    figure.set_layout_engine("none")  # the layout is computed once; further renderings reuse it
    return buffer.getvalue()


def save_figure(figure: Figure, svg: str, folder: Path, name: str) -> None:
    """``folder/name.svg`` and ``folder/name.png``, on white. svg: what ``to_svg`` made of the figure."""
    at = svg.index(">", svg.index("<svg")) + 1
    white = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    write_bytes(folder / f"{name}.svg", (svg[:at] + white + svg[at:]).encode())
    figure.set_facecolor(PAPER)
    write_bytes(folder / f"{name}.png", to_png(figure))


def themed_svg(svg: str, prefix: str, label: str, layer: str = "") -> str:
    """The drawing for use inside a page: ids made unique, colours as CSS variables, a spoken label.

    layer: markup that is added at the end.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = add_curve_classes(re.sub(r"#[0-9a-f]{6}\b", lambda m: _css_variable(m.group()), svg))
    view = re.search(r'viewBox="([^"]*)"', svg)
    width = view.group(1).split()[2] if view else "400"
    head = f'<svg class="plot" style="max-width:{float(width) * 1.5:.0f}px" role="img" aria-label="{_escape_attribute(label)}"'
    body = svg[svg.index(">") + 1 : svg.rindex("</svg>")] + layer + "</svg>"
    return f'{head} viewBox="{view.group(1) if view else ""}">{body}'.strip()


def _css_variable(hexadecimal: str) -> str:
    name = VARIABLES.get(hexadecimal)
    return f"var(--{name})" if name else hexadecimal


def _escape_attribute(text: str) -> str:
    table = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}
    return "".join(table.get(character, character) for character in text)


def png_uri(image: np.ndarray) -> str:
    """One picture (c, h, w) in [0, 1] as a data URI of a PNG file; c is 1 or 3."""
    pixels = np.round(np.clip(np.nan_to_num(image), 0, 1) * 255).astype(np.uint8)
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()

"""One look for every figure: a colour-blind-safe palette, deterministic SVG, light and dark."""

from __future__ import annotations

import base64
import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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

# Figures are drawn in the light palette. ``themed_svg`` replaces each of its colours by a CSS variable, so that one drawing
# inside the page follows the reader's light or dark setting; ``save_figure`` writes files that stand alone on white.
INK, MUTED, GRID, PAPER = "#1b2024", "#5b656e", "#d9dfe4", "#fffffe"
# Okabe and Ito (2008), darkened where a colour falls short of 3:1 on white; order: most apart first.
SERIES = ("#0072b1", "#d45e00", "#00805f", "#b0568c", "#8a6d00", "#2f9bd1", "#5f4bb6", "#6b6b6a")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
CLAIM, ACCOUNTED, MEASURED = SERIES[4], SERIES[0], SERIES[1]
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"} | {c: f"s{i}" for i, c in enumerate(SERIES)}
_RC: dict[Any, Any] = {
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


def to_pdf(figure: Figure) -> bytes:
    """For LaTeX: the letters are outlines of TrueType, the same bytes for the same drawing."""
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # at INFO, as commands log, it names every table of a font
    return _render_figure(figure, "pdf", 0.04, dict.fromkeys(("CreationDate", "Creator", "Producer")))


def _render_figure(figure: Figure, kind: str, pad: float, metadata: dict[str, None]) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes, and is whole in the page's own text.
        warnings.filterwarnings("ignore", message="Glyph|constrained_layout not applied")
        figure.savefig(buffer, format=kind, dpi=150, bbox_inches="tight", pad_inches=pad, metadata=metadata)
    figure.set_layout_engine("none")  # the layout is computed once; further renderings reuse it
    return buffer.getvalue()


def save_figure(figure: Figure, svg: str, folder: Path, name: str) -> None:
    """``folder/name.svg``, ``.png`` and ``.pdf``, on white. svg: what ``to_svg`` made of the figure."""
    at = svg.index(">", svg.index("<svg")) + 1
    white = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    write_bytes(folder / f"{name}.svg", (svg[:at] + white + svg[at:]).encode())
    figure.set_facecolor(PAPER)
    write_bytes(folder / f"{name}.png", to_png(figure))
    write_bytes(folder / f"{name}.pdf", to_pdf(figure))


def themed_svg(svg: str, prefix: str, label: str) -> str:
    """The drawing for use inside a page: ids made unique, colours as CSS variables, a spoken label."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda m: _css_variable(m.group()), svg)
    view = re.search(r'viewBox="([^"]*)"', svg)
    width = view.group(1).split()[2] if view else "400"
    head = f'<svg class="plot" style="max-width:{float(width) * 1.5:.0f}px" role="img" aria-label="{escape(label)}"'
    body = svg[svg.index(">") + 1 : svg.rindex("</svg>")] + "</svg>"
    return f'{head} viewBox="{view.group(1) if view else ""}">{body}'.strip()


def _css_variable(hexadecimal: str) -> str:
    name = VARIABLES.get(hexadecimal)
    return f"var(--{name})" if name else hexadecimal


def png_uri(image: np.ndarray) -> str:
    """One picture (c, h, w) in [0, 1] as a data URI of a PNG file; c is 1 or 3."""
    pixels = np.round(np.clip(np.nan_to_num(image), 0, 1) * 255).astype(np.uint8)
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()

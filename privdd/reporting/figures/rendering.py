"""A figure as SVG, PNG and PDF: the same bytes for the same drawing."""

from __future__ import annotations

import io
import logging
import re
import warnings
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import escape
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from privdd.reporting.figures.paper import PaperStyle
from privdd.reporting.figures.style import (
    GRID,
    INK,
    MATPLOTLIB_SETTINGS,
    MUTED,
    PAPER,
    SERIES,
)
from privdd.runtime.files import write_bytes

VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"} | {
    c: f"s{i}" for i, c in enumerate(SERIES)
}
PAGE_SCALE = 1.7  # pixels of a page, at most, to a point of a drawing


class Drawing(Figure):
    """A figure that a notebook shows as an image, whether or not pyplot was imported.

    Attributes:
        drawn_box: Around all that was drawn when it was last measured, in inches; None before.
    """

    drawn_box: Bbox | None = None

    def get_tightbbox(self, *arguments: Any, **named: Any) -> Bbox:
        """As of every figure; the box is kept, as to measure takes as long as to draw."""
        box: Bbox = super().get_tightbbox(*arguments, **named)
        self.drawn_box = box
        return box

    def _repr_png_(self) -> bytes:
        self.drawn_box = None  # whoever shows it again may have added to it
        return to_png(self)


def to_svg(figure: Figure) -> str:
    """The same bytes for the same drawing: fixed salt, no date, no metadata."""
    silent = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    return _render_figure(figure, "svg", 0.04, silent).decode()


def to_png(figure: Figure) -> bytes:
    return _render_figure(figure, "png", 0.1, {"Software": None})


def to_pdf(figure: Figure, paper: PaperStyle) -> bytes:
    """For LaTeX: the letters are outlines of TrueType, the same bytes for the same drawing. The
    figure takes the paper's form, so SVG and PNG are made before."""
    # at INFO, as commands log, it names every table of a font
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    paper.apply(figure)
    silent = dict.fromkeys(("CreationDate", "Creator", "Producer"))
    return _render_figure(figure, "pdf", None, silent)


def _render_figure(
    figure: Figure, kind: str, pad: float | None, metadata: dict[str, None]
) -> bytes:
    """pad: inches around what is drawn; None for the figure's own size."""
    margins: dict[str, Any] = {}
    drawn = figure.drawn_box if isinstance(figure, Drawing) else None
    if pad is not None and drawn is not None:
        margins = {"bbox_inches": drawn.padded(pad)}
    elif pad is not None:
        margins = {"bbox_inches": "tight", "pad_inches": pad}
    buffer = io.BytesIO()
    with matplotlib.rc_context(MATPLOTLIB_SETTINGS), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes, and is whole in the page's own
        # text.
        warnings.filterwarnings("ignore", message="Glyph|constrained_layout not applied")
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata, **margins)
    figure.set_layout_engine(None)  # the layout is computed once; further renderings reuse it
    return buffer.getvalue()


def save_figure(
    figure: Figure, svg: str, folder: Path, name: str, paper: PaperStyle | None = None
) -> None:
    """Write ``folder/name.svg`` and ``.png``, on white.

    Args:
        figure: The drawing; its background becomes white.
        svg: What ``to_svg`` made of it.
        folder: Where the files go.
        name: Their name without its ending.
        paper: The form of ``.pdf``; None for none, unless one lies there already: it is replaced,
            so that no file of an earlier drawing stays with the others.
    """
    at = svg.index(">", svg.index("<svg")) + 1
    white = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    write_bytes(folder / f"{name}.svg", (svg[:at] + white + svg[at:]).encode())
    figure.set_facecolor(PAPER)
    write_bytes(folder / f"{name}.png", to_png(figure))
    path = folder / f"{name}.pdf"
    if paper is not None or path.exists():
        write_bytes(path, to_pdf(figure, paper or PaperStyle()))


def themed_svg(svg: str, prefix: str, label: str) -> str:
    """The drawing for use inside a page: ids made unique, colours as CSS variables, a spoken
    label."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda m: _css_variable(m.group()), svg)
    view = re.search(r'viewBox="([^"]*)"', svg)
    width = view.group(1).split()[2] if view else "400"
    head = (
        f'<svg class="plot" style="max-width:{float(width) * PAGE_SCALE:.0f}px" role="img" '
        f'aria-label="{escape(label)}"'
    )
    body = svg[svg.index(">") + 1 : svg.rindex("</svg>")] + "</svg>"
    return f'{head} viewBox="{view.group(1) if view else ""}">{body}'.strip()


def _css_variable(hexadecimal: str) -> str:
    name = VARIABLES.get(hexadecimal)
    return f"var(--{name})" if name else hexadecimal

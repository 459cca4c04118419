"""A figure as SVG, PNG and PDF: the same bytes for the same drawing."""

from __future__ import annotations

import io
import logging
import re
import warnings
from pathlib import Path

import matplotlib
from markupsafe import escape
from matplotlib.figure import Figure

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


def to_svg(figure: Figure) -> str:
    """The same bytes for the same drawing: fixed salt, no date, no metadata."""
    silent = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    return _render_figure(figure, "svg", 0.04, silent).decode()


def to_png(figure: Figure) -> bytes:
    return _render_figure(figure, "png", 0.1, {"Software": None})


def to_pdf(figure: Figure) -> bytes:
    """For LaTeX: the letters are outlines of TrueType, the same bytes for the same drawing."""
    # at INFO, as commands log, it names every table of a font
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    return _render_figure(
        figure, "pdf", 0.04, dict.fromkeys(("CreationDate", "Creator", "Producer"))
    )


def _render_figure(figure: Figure, kind: str, pad: float, metadata: dict[str, None]) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(MATPLOTLIB_SETTINGS), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes, and is whole in the page's own
        # text.
        warnings.filterwarnings("ignore", message="Glyph|constrained_layout not applied")
        figure.savefig(
            buffer, format=kind, dpi=150, bbox_inches="tight", pad_inches=pad, metadata=metadata
        )
    figure.set_layout_engine("none")  # the layout is computed once; further renderings reuse it
    return buffer.getvalue()


def save_figure(figure: Figure, svg: str, folder: Path, name: str, pdf: bool = False) -> None:
    """Write ``folder/name.svg`` and ``.png``, on white.

    Args:
        figure: The drawing; its background becomes white.
        svg: What ``to_svg`` made of it.
        folder: Where the files go.
        name: Their name without its ending.
        pdf: Whether ``.pdf`` is written too; one that lies there already is replaced, so that no
            file of an earlier drawing stays beside the others.
    """
    at = svg.index(">", svg.index("<svg")) + 1
    white = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    write_bytes(folder / f"{name}.svg", (svg[:at] + white + svg[at:]).encode())
    figure.set_facecolor(PAPER)
    write_bytes(folder / f"{name}.png", to_png(figure))
    paper = folder / f"{name}.pdf"
    if pdf or paper.exists():
        write_bytes(paper, to_pdf(figure))


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

"""The drawing inside a page: one for light and dark, its label escaped."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from privdd.reporting.figures.canvas import figure_canvas
from privdd.reporting.figures.paper import PaperStyle
from privdd.reporting.figures.rendering import VARIABLES, themed_svg, to_pdf, to_png, to_svg
from privdd.reporting.figures.roc_curves import RocLine, draw_roc, step_curve

pytestmark = pytest.mark.drawn


@pytest.fixture(scope="module")
def line() -> RocLine:
    rng = np.random.default_rng(0)
    members = np.arange(400) < 200
    return RocLine(
        "<LiRA>",
        step_curve(members + rng.normal(size=400), members),
        step_curve(rng.normal(size=400), members),
    )


def test_names_are_escaped_and_colours_follow_the_page(line: RocLine) -> None:
    made = themed_svg(to_svg(draw_roc([line])), "roc", 'a "label" <b>')
    assert (
        "<LiRA>" not in made
        and "&lt;LiRA&gt;" in made
        and "<b>" not in made
        and made.endswith("</svg>")
    )
    assert not any(colour in made for colour in VARIABLES) and "var(--s0)" in made


def test_a_figure_for_latex_says_nothing_on_the_terminal(
    line: RocLine, caplog: pytest.LogCaptureFixture
) -> None:
    """A run's commands log at level INFO; fontTools reports each table of a font at that level."""
    with caplog.at_level("INFO"):
        assert to_pdf(draw_roc([line]), PaperStyle()).startswith(b"%PDF")
    assert caplog.records == []


def test_a_drawing_is_measured_once_for_all_of_its_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """PNG after SVG: the same box but for the margin, and nothing outside it."""
    measured: list[int] = []
    measure = Figure.get_tightbbox

    def count(figure: Figure, *arguments: Any, **named: Any) -> Any:
        measured.append(1)
        return measure(figure, *arguments, **named)

    monkeypatch.setattr(Figure, "get_tightbbox", count)
    with figure_canvas(3.0, 2.0) as (figure, axes):
        axes.plot([0, 1], [0, 1])
        axes.set_ylabel("a label of the axis")
    svg = to_svg(figure)
    png = Image.open(io.BytesIO(to_png(figure)))
    assert len(measured) == 1
    points = [float(number) for number in svg.split('viewBox="')[1].split('"')[0].split()[2:]]
    # 150 dots an inch of 72 points; margins of .1 inch, of .04 in the SVG
    assert png.size == pytest.approx([150 * (p / 72 + 2 * (0.1 - 0.04)) for p in points], abs=2)
    pixels = np.asarray(png.convert("L"))
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (edge == edge[0]).all()

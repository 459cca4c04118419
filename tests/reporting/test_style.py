"""The drawing inside a page: one for light and dark, its label escaped."""

from __future__ import annotations

import numpy as np
import pytest

from privdd.reporting.figures.paper import PaperStyle
from privdd.reporting.figures.rendering import VARIABLES, themed_svg, to_pdf, to_svg
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

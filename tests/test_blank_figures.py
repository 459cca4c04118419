"""The first suite draws for the mark ``drawn`` alone, and any other choice of tests draws all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from privdd.reporting.figures.canvas import figure_canvas
from privdd.reporting.figures.paper import PaperStyle
from privdd.reporting.figures.rendering import themed_svg, to_pdf, to_png, to_svg
from tests.blank_figures import FIRST_SUITE, pytest_runtest_setup


def a_test(chosen: str, *marks: str) -> Any:
    """An item of pytest with these marks, where ``-m chosen`` was asked for."""
    return SimpleNamespace(
        config=SimpleNamespace(getoption={"markexpr": chosen}.__getitem__),
        get_closest_marker=lambda name: name if name in marks else None,
    )


def written(test: Any) -> tuple[str, bytes, bytes]:
    """One figure as SVG, PNG and PDF, as they are written in the test."""
    pytest_runtest_setup(test)
    with figure_canvas(1, 1) as (figure, axes):
        axes.plot([0, 1])
    return to_svg(figure), to_png(figure), to_pdf(figure, PaperStyle())


@pytest.mark.parametrize(
    ("chosen", "marks", "is_drawn"),
    [
        (FIRST_SUITE, (), False),
        (FIRST_SUITE, ("drawn",), True),
        ("nightly or not nightly", (), True),
        ("", (), True),
    ],
)
def test_a_figure_is_drawn_for_whoever_looks_at_it(
    request: pytest.FixtureRequest, chosen: str, marks: tuple[str, ...], is_drawn: bool
) -> None:
    request.addfinalizer(lambda: pytest_runtest_setup(request.node))
    svg, png, pdf = written(a_test(chosen, *marks))
    assert ("<path" in svg) is is_drawn and themed_svg(svg, "name", "label").endswith("</svg>")
    assert (len(png) > 1000) is is_drawn and png.startswith(b"\x89PNG")
    assert (len(pdf) > 1000) is is_drawn and pdf.startswith(b"%PDF")

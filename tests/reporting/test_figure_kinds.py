"""What single kinds of figures draw, read back from their axes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from privdd.reporting.figures.accuracy_curves import draw_accuracy
from privdd.reporting.figures.canvas import figure_canvas, format_percent
from privdd.reporting.figures.detection_bars import draw_detection_rates
from privdd.reporting.figures.style import style_of


@pytest.mark.parametrize(
    ("share", "text"), [(0.001, "0.1 %"), (1.0, "100 %"), (0.5, "50 %"), (1e-5, "0.001 %")]
)
def test_a_share_is_written_in_per_cent(share: float, text: str) -> None:
    assert format_percent(share) == text


@pytest.mark.drawn
def test_a_figure_shows_itself_as_png() -> None:
    with figure_canvas(1, 1) as (figure, axes):
        axes.plot([0, 1])
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


@pytest.mark.drawn
def test_a_figure_that_is_shown_again_shows_what_was_added_since() -> None:
    with figure_canvas(1, 1) as (figure, axes):
        axes.plot([0, 1])
    heights = []
    for _ in range(2):
        png = figure._repr_png_()  # type: ignore[attr-defined]
        heights.append(Image.open(io.BytesIO(png)).height)
        figure.text(0.5, 1.5, "above the axes")
    assert heights[1] > 1.2 * heights[0]


def test_accuracy_is_drawn_by_round_in_the_style_of_its_place() -> None:
    axes = draw_accuracy({"a": [0.25, 0.5], "b": [0.75]}).axes[0]
    curves = {line.get_label(): line for line in axes.lines}
    assert [*curves["a"].get_xdata()] == [1, 2]
    assert [*curves["a"].get_ydata()] == [0.25, 0.5]
    assert curves["b"].get_color() == style_of(1).colour
    assert axes.get_ylim() == (0, 1)


def test_detection_rates_are_bars_above_the_line_of_chance() -> None:
    axes = draw_detection_rates(np.array([0.5, 0.25, 0.0]), 0.1).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0.5, 0.25, 0.0]
    (chance,) = axes.lines
    assert set(chance.get_ydata()) == {0.1}

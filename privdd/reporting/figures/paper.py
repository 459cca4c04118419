"""A figure in the form of a paper: its width, its font and the names of its series."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names
from matplotlib.legend import Legend
from matplotlib.text import Text

from privdd.reporting.figures.style import COLUMN, MATPLOTLIB_SETTINGS
from privdd.reporting.wording import setting_title

WIDTHS = (2.0, 12.0)  # inches
SIZES = (4.0, 24.0)  # points
FILLED = 0.96  # of the width, at most, by one label or legend
PASSES = 4  # the handles of a legend keep their width, so its texts shrink step by step


def _check_range(key: str, value: float, least: float, most: float, unit: str) -> None:
    """Raises ValueError, one line."""
    if not least <= value <= most:
        raise ValueError(f"{key}={value:g}: must be from {least:g} to {most:g} {unit}")


def _shrink_to_fit(figure: Figure) -> None:
    """Make labels and legends small enough that the figure cuts none."""
    for _ in range(PASSES):
        figure.draw_without_rendering()
        labels = [axes.xaxis.label for axes in figure.axes]
        _shrink(figure, [(legend, legend.get_texts()) for legend in figure.findobj(Legend)])
        _shrink(figure, [(label, [label]) for label in labels])


def _shrink(figure: Figure, items: Sequence[tuple[Artist, Sequence[Text]]]) -> None:
    """items: (what has to fit around its own centre, its texts)."""
    for item, texts in items:
        extent = item.get_window_extent()
        centre = (extent.x0 + extent.x1) / 2
        room = FILLED * 2 * min(centre, figure.bbox.width - centre)
        if extent.width > room > 0:
            for text in texts:
                text.set_fontsize(text.get_fontsize() * room / extent.width)


@dataclass(frozen=True)
class PaperStyle:
    """What a paper asks of its figures.

    Attributes:
        font: The family of all texts; None for the page's own.
        size: Of the labels of the axes, in points; other texts keep their proportion to it.
        width: Of the figure, in inches; its height keeps its proportion to it.
        names: Word of a label -> what the paper calls it, as in ``{"fedfed": "FedFed"}``.

    Raises:
        ValueError: One line. The font is not installed, or a number is out of range.
    """

    font: str | None = None
    size: float = 8.0
    width: float = COLUMN
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_range("figures.size", self.size, *SIZES, "points")
        _check_range("figures.width", self.width, *WIDTHS, "inches")
        if self.font is not None and self.font not in get_font_names():
            close = difflib.get_close_matches(self.font, get_font_names(), 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"figures.font={self.font}: must be a font that is installed on this machine{hint}"
            )

    def apply(self, figure: Figure) -> None:
        """Give a figure this form; its drawing as SVG or PNG has to be made before."""
        scale = self.size / MATPLOTLIB_SETTINGS["font.size"]
        figure.set_layout_engine("constrained")
        width, height = figure.get_size_inches()
        figure.set_size_inches(self.width, height * self.width / width)
        for text in figure.findobj(Text):
            text.set_fontsize(text.get_fontsize() * scale)
            if self.font is not None:
                text.set_fontfamily(self.font)
        for axes in figure.axes:
            # ticks make their texts anew at each drawing
            axes.tick_params(which="both", labelsize=self.size)
            if self.font is not None:
                axes.tick_params(which="both", labelfontfamily=self.font)
            rows = [label.get_text() for label in axes.get_yticklabels()]
            renamed = [self.rename(row) for row in rows]
            if renamed != rows:
                axes.set_yticks(axes.get_yticks(), renamed)
            for note in axes.texts:  # placed for the width at which the figure was drawn
                note.set_fontsize(note.get_fontsize() * min(1.0, self.width / width))
        for text in figure.findobj(Text):
            text.set_text(self.rename(text.get_text()))
        _shrink_to_fit(figure)

    def rename(self, text: str) -> str:
        """A label without code words, each word called as the paper calls it."""
        words = re.split(r"(\W+)", text)
        renamed = [self.names.get(word, word) for word in words]
        return setting_title("".join(renamed))

"""The form of figures in a paper: exact width, its font, size and names, one line for a bad
value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matplotlib.text import Text

from privdd.report import main
from privdd.reporting.comparison import write_comparison
from privdd.reporting.figures.epsilon_strip import StripRow, draw_epsilon_strip
from privdd.reporting.figures.frontier_marks import FrontierPoint, draw_frontier
from privdd.reporting.figures.paper import PaperStyle
from privdd.reporting.figures.rendering import to_pdf, to_png, to_svg
from privdd.reporting.figures.upload_bars import draw_bytes

pytestmark = pytest.mark.drawn

POINTS = 72


def width_of(pdf: bytes) -> float:
    """Inches of the page, from its MediaBox."""
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", pdf)
    assert box
    return float(box.group(1)) / POINTS


def drawings() -> dict[str, object]:
    point = FrontierPoint("dp_head", 2.0, (0.8,), label="dp_head noise_multiplier=2")
    return {
        "strip": draw_epsilon_strip([StripRow("global_model", 1.0, 5.0, 3.0)]),
        "frontier": draw_frontier([point]),
        "bytes": draw_bytes({"dp_head": 1.0, "fedfed": 2.0}),
    }


@pytest.mark.parametrize("name", ["strip", "frontier", "bytes"])
def test_a_figure_has_the_width_and_the_words_of_the_paper(name: str) -> None:
    figure = drawings()[name]
    to_svg(figure)  # as a page has it, first
    to_png(figure)
    names = {"dp_head": "Ours", "fedfed": "FedFed", "global_model": "Model"}
    pdf = to_pdf(figure, PaperStyle("STIXGeneral", size=7, width=4.0, names=names))
    assert width_of(pdf) == pytest.approx(4.0, abs=0.01) and b"STIXGeneral" in pdf
    texts = [text.get_text() for text in figure.findobj(Text) if text.get_text()]
    assert not [text for text in texts if "_" in text or "noise_multiplier" in text]
    assert {"Ours", "Model", "Ours σ = 2"} & set(texts)
    axes = figure.axes[0]
    ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
    sizes = {text.get_fontsize() for text in ticks}
    assert sizes == {7.0}


def test_nothing_of_a_wide_drawing_is_cut_in_a_column() -> None:
    figure = draw_epsilon_strip([StripRow("the whole of the run", 1.0, 5.0, 3.0)])
    to_pdf(figure, PaperStyle(size=9))
    right = figure.bbox.width
    for item in (figure.axes[0].xaxis.label, *figure.legends):
        extent = item.get_window_extent()
        assert extent.x0 >= 0 and extent.x1 <= right


def test_without_settings_a_figure_is_one_column_wide() -> None:
    assert width_of(to_pdf(draw_bytes({"a": 1.0}), PaperStyle())) == pytest.approx(3.3, abs=0.01)


@pytest.mark.nightly
def test_a_page_stays_as_it_is(runs: dict[str, Path], tmp_path: Path) -> None:
    """PDF is drawn last: SVG and PNG hold the page's own font and labels."""
    figures = tmp_path / "figures"
    folders = [runs["consistent"], runs["contradiction"]]
    write_comparison(folders, tmp_path)
    before = {path.name: path.read_bytes() for path in figures.iterdir()}
    write_comparison(folders, tmp_path, paper=PaperStyle(size=7))
    assert {name: (figures / name).read_bytes() for name in before} == before
    pdfs = [path for path in figures.glob("*.pdf") if not path.name.startswith("pictures")]
    widths = [width_of(path.read_bytes()) for path in pdfs]
    assert widths == pytest.approx([3.3] * len(pdfs), abs=0.01) and pdfs


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("figures.font=STIXGenral", "must be a font that is installed on this machine; did you "),
        ("figures.size=200", "figures.size=200: must be from 4 to 24 points"),
        ("figures.width=0.1", "figures.width=0.1: must be from 2 to 12 inches"),
        ("figures.width=wide", "figures.width=wide: "),
        ("figures.colour=red", "figures.colour: "),
    ],
)
def test_a_bad_value_is_one_line(
    typed: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), typed]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line

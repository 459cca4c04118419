"""Values at the pointer: they stand where the curve is, and hide with it."""

from __future__ import annotations

import html
import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from privdd.reporting import figures, plots
from privdd.reporting.comparison import write_comparison
from privdd.reporting.figures import RocLine, step_curve
from privdd.reporting.page import write_report
from privdd.reporting.style import HoverZone, hover_layer, themed_svg, to_svg
from tests.reporting.test_page import browse


@pytest.fixture(scope="module")
def line() -> RocLine:
    rng = np.random.default_rng(0)
    members = np.arange(400) < 200
    return RocLine("<LiRA>", step_curve(members + rng.normal(size=400), members), step_curve(rng.normal(size=400), members))


def test_marks_lie_on_the_drawn_curve(line: RocLine) -> None:
    """The drawn path is matplotlib's own: each mark has to be on one of its horizontal steps."""
    figure = figures.draw_roc([line])
    svg = to_svg(figure)
    path = re.search(r'id="c0-line">\s*<path d="([^"]*)"', svg)
    assert path
    at = np.array(re.findall(r"-?[\d.]+", path.group(1)), float).reshape(-1, 2)
    marks = re.findall(r'class="c0 dot" cx="([\d.]+)" cy="([\d.]+)"', hover_layer(svg, figure.axes[0], plots.roc_tooltips([line])[0]))
    assert len(marks) > 10
    for x, y in np.array(marks, float):
        steps = [(a, b) for a, b in pairwise(at) if abs(a[1] - b[1]) < 0.01 and a[0] - 0.1 <= x <= b[0] + 0.1]
        assert any(abs(a[1] - y) < 0.1 for a, _ in steps), (x, y)


def test_names_are_escaped_and_parts_have_the_class_of_their_curve(line: RocLine) -> None:
    figure = figures.draw_roc([line])
    svg = to_svg(figure)
    made = themed_svg(svg, "roc", "told", hover_layer(svg, figure.axes[0], plots.roc_tooltips([line])[0]))
    assert "<LiRA>" not in made and "&lt;LiRA&gt;" in made and made.endswith("</svg>")
    for number in (0, 1):
        for part in ("line", "band"):
            assert f'<g class="c{number}" id="roc-c{number}-{part}"' in made


def test_the_page_has_a_switch_for_every_curve_that_it_can_hide(runs: dict[str, Path], tmp_path: Path) -> None:
    text = write_comparison(list(runs.values()), tmp_path).read_text(encoding="utf-8")
    switches = set(re.findall(r'<input type="checkbox" class="k(\d)" checked>', text))
    assert switches and all(f"figure:has(.k{n}:not(:checked)) .c{n}" in text and f'<g class="c{n}"' in text for n in switches)


def test_a_drawing_without_an_area_has_no_layer(line: RocLine) -> None:
    assert hover_layer("<svg></svg>", figures.draw_roc([line]).axes[0], [HoverZone(None, None, "x", ())]) == ""


SWITCH = """<!doctype html><meta charset="utf-8"><iframe id="f" srcdoc="%s" style="width:1400px;height:3000px"></iframe><pre id="out"></pre>
<script>const frame = document.getElementById("f");
frame.onload = () => {
  const page = frame.contentDocument, figure = page.querySelector(".toggles").parentElement;
  const seen = () => ["c0", "c1"].map(one => page.defaultView.getComputedStyle(figure.querySelector("." + one)).display);
  const before = seen();
  figure.querySelector(".k0").click();
  document.getElementById("out").textContent = JSON.stringify([before, seen()]);
};</script>"""


@pytest.mark.browser
def test_a_curve_that_is_switched_off_is_gone_and_the_others_stay(runs: dict[str, Path], tmp_path: Path) -> None:
    text = write_report(runs["unprotected"]).read_text(encoding="utf-8")
    (tmp_path / "host.html").write_text(SWITCH % html.escape(text, quote=True), encoding="utf-8")
    document, console = browse(tmp_path / "host.html", tmp_path / "profile")
    found = re.search(r'<pre id="out">(.*?)</pre>', document)
    assert found and console == []
    assert json.loads(html.unescape(found.group(1))) == [["inline", "inline"], ["none", "inline"]]

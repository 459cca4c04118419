"""``privdd.report DIR pdf=true``: a print beside the page, or one line that says what is
missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from privdd.report import main
from privdd.reporting.browser import NoBrowser, find_browser, print_pdf
from privdd.reporting.figures.paper import PaperStyle
from privdd.reporting.figures.rendering import save_figure, to_svg
from privdd.reporting.figures.upload_bars import draw_bytes
from tests.conftest import SmallAudit

pytestmark = pytest.mark.nightly


@pytest.mark.extra("browser")
def test_a_run_is_printed_and_its_seal_still_holds(
    audited: Callable[[str], SmallAudit], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(audited("fedavg").path, tmp_path / "run"))
    assert main([str(folder), "pdf=true"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == str(folder / "report.pdf") and (
        folder / "report.pdf"
    ).read_bytes().startswith(b"%PDF")
    assert {path.stem for path in (folder / "figures").glob("*.pdf")} == {
        path.stem for path in (folder / "figures").glob("*.svg")
    }
    assert main([str(folder)]) == 0  # the folder still agrees with its manifest


def test_figures_are_pdf_only_if_asked_for_and_never_older_than_the_others(tmp_path: Path) -> None:
    figure = draw_bytes({"a": 1.0})
    save_figure(figure, to_svg(figure), tmp_path, "bytes")
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".png"}
    save_figure(figure, to_svg(figure), tmp_path, "bytes", paper=PaperStyle())
    first = (tmp_path / "bytes.pdf").read_bytes()
    later = draw_bytes({"a": 1.0, "b": 2.0})
    save_figure(later, to_svg(later), tmp_path, "bytes")
    second = (tmp_path / "bytes.pdf").read_bytes()
    assert first.startswith(b"%PDF") and second.startswith(b"%PDF") and first != second


def test_without_a_browser_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        NoBrowser,
        match=r"a PDF needs a browser, and PRIVDD_BARE=1 hides those on the PATH: set "
        r"PRIVDD_BROWSER",
    ):
        find_browser()
    monkeypatch.setenv("PRIVDD_BARE", "0")
    with pytest.raises(
        NoBrowser,
        match=r"a PDF needs a browser, and none of chromium, .* is on the PATH; or open the page",
    ):
        find_browser()


def test_a_browser_that_prints_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho 'cannot open display' >&2\nexit 3\n")
    silent.chmod(0o755)
    monkeypatch.setenv("PRIVDD_BROWSER", str(silent))
    with pytest.raises(NoBrowser, match=r"did not print .*\(exit status 3\): cannot open display"):
        print_pdf(tmp_path / "page.html")
    monkeypatch.setenv("PRIVDD_BROWSER", "no-such-browser")
    with pytest.raises(NoBrowser, match="PRIVDD_BROWSER=no-such-browser: no such command"):
        find_browser()

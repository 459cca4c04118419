"""Pages and comparisons from verified numbers only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from privdd.reporting.comparison import frontier as drawn_frontier
from privdd.reporting.comparison import write_comparison
from privdd.reporting.grouping import settings
from privdd.reporting.page import write_report
from privdd.runtime.seal import seal_page
from privdd.verifying.verification import verified


def report(run: Path | str) -> Path:
    """``report.html`` and figures of a run that agrees with itself; returns the page's path.

    Raises DamagedRun or Unverified, one line.
    """
    page = write_report(run, verified)
    seal_page(Path(run))
    return page


def compare(runs: Sequence[Path | str], out: Path | str) -> Path:
    """``out/comparison.html``, figures and tables of runs that agree with themselves; returns the page's path.

    Raises DamagedRun or Unverified, one line that names the folder.
    """
    return write_comparison(runs, out, verified)


def frontier(runs: Iterable[Path | str]) -> Figure:
    """Accuracy against accounted epsilon over finished runs, what attacks showed at least beside it.

    Raises ValueError where no run has both, DamagedRun or Unverified, one line that names the folder.
    """
    plot = drawn_frontier(settings([verified(Path(path)) for path in runs]))
    if plot is None:
        raise ValueError("none of these runs has an accuracy and a finite epsilon")
    return plot.figure

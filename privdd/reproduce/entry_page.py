"""results.json, the page and the figures of an entry."""

from __future__ import annotations

from pathlib import Path

from privdd.reporting.plots import environment
from privdd.reporting.style import save
from privdd.reproduce.entry_figures import label, plots
from privdd.reproduce.entry_result import Result, TableColumn
from privdd.reproduce.paper_order import HOLDS, MEAN, OPEN, REVERSED
from privdd.runtime.files import write_bytes, write_json

PAGE = "reproduction.html"
SAYS = {
    HOLDS: "holds",
    MEAN: "holds in the mean; the seeds do not decide it",
    OPEN: "does not hold in the mean; the seeds do not decide it",
    REVERSED: "does not hold",
    "": "nothing to compare",
}


def headline(column: TableColumn) -> str:
    """One sentence about a column: does the paper's leader lead here?"""
    if column.leader is None:
        if not column.said:
            return "the paper prints no numbers to compare with"
        kinds = [pair.verdict for _, pair in column.said]
        return f"of {len(kinds)} comparisons that the text makes, {sum(k == HOLDS for k in kinds)} hold"
    best = label(column.leader.pairs[0].better)
    p = "" if column.leader.p is None else f" (p {column.leader.p:.2g})"
    return f"{best} ahead of all others: {SAYS[column.leader.verdict]}{p}"


def write(found: Result, folder: Path) -> Path:
    """-> the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", found.as_json())
    drawn = {column.name: plots(column) for column in found.columns}
    text = (
        environment()
        .get_template("reproduction.html.jinja")
        .render(r=found, drawn=drawn, label=label, headline=headline, says=SAYS, tone=_tone(found))
    )
    write_bytes(folder / PAGE, text.encode(errors="replace"))
    for several in (*drawn.values(), found.plots):
        for plot in several:
            save(plot.figure, plot.drawing, folder / "figures", plot.name)
    return folder / PAGE


def _tone(found: Result) -> str:
    kinds = {column.leader.verdict for column in found.columns if column.leader}
    if kinds & {REVERSED, OPEN}:
        return "contradiction"
    return "consistent" if kinds == {HOLDS} else "plain"

"""Train an entry and write its page: results.json, HTML and figures; all entries, one after the other."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from privdd.cli.paper_rows import paper_of
from privdd.core.errors import BadConfig
from privdd.reporting.plots import environment
from privdd.reporting.style import save
from privdd.reproduce.analyses import analysed
from privdd.reproduce.entries import PaperEntry, catalogue, find
from privdd.reproduce.entry_figures import label, plots
from privdd.reproduce.entry_result import Result, TableColumn, result
from privdd.reproduce.feature_kinds import tables
from privdd.reproduce.overview import write_overview
from privdd.reproduce.paper_order import HOLDS, MEAN, OPEN, REVERSED
from privdd.reproduce.plan_rows import PaperCell, cells, on_device
from privdd.reproduce.row_results import results
from privdd.reproduce.train_rows import train
from privdd.reproduce.typed import Wish
from privdd.runtime.files import write_bytes, write_json

PAGE = "reproduction.html"
SAYS = {
    HOLDS: "holds",
    MEAN: "holds in the mean; the seeds do not decide it",
    OPEN: "fails in the mean; the seeds do not decide it",
    REVERSED: "does not hold",
    "": "nothing to compare",
}


def planned(entry: PaperEntry, asked: Wish) -> list[PaperCell]:
    """Raises BadConfig for an entry that trains nothing, with the reason."""
    if not entry.runs:
        raise BadConfig(f"{entry.name}: {entry.kind}: {entry.why}")
    return cells(entry, asked.scale, on_device(asked.device))


def reproduced(entry: PaperEntry, asked: Wish) -> tuple[Result, Path, int]:
    """(what came out, its page, how many trainings failed). What was trained before is not trained again."""
    made = planned(entry, asked)
    rows = asked.out / asked.scale / "rows" / entry.experiment
    failed = train(made, asked.seeds, rows, asked.jobs, entry.name)
    found = results(made, asked.seeds, rows, bool(paper_of(entry.experiment)["best"]), failed)
    extra = tables(made, asked.seeds, asked.out / asked.scale / "rows") if entry.features else []
    more, drawn = analysed(entry.also, made, asked.seeds, rows)
    compared = result(entry, asked, made, found, [*extra, *more], drawn)
    return compared, write(compared, asked.out / asked.scale / entry.name), len(failed)


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
    """results.json, the page and the figures of an entry -> the page."""
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


def say(found: Result, page: Path, failed: int) -> None:
    for column in found.columns:
        print(f"{found.entry.name}, {column.name}: {headline(column)}")
    if failed:
        print(f"privdd: error: {failed} trainings failed; the page says which and why", file=sys.stderr)
    print(f"page: {page}", flush=True)


def one(asked: Wish) -> int:
    found, page, failed = reproduced(find(asked.name), asked)
    say(found, page, failed)
    return int(failed > 0)


def everything(asked: Wish) -> int:
    """Every entry that runs here, one after the other; the page about all of them grows with each."""
    failures = 0
    for entry in catalogue().values():
        if entry.runs:
            found, page, failed = reproduced(entry, replace(asked, name=entry.name))
            say(found, page, failed)
            write_overview(asked.out / asked.scale)
            failures += failed
    overview(asked)
    return int(failures > 0)


def overview(asked: Wish) -> int:
    """The page about all entries, from what is finished."""
    print(f"overview: {write_overview(asked.out / asked.scale)}")
    return 0

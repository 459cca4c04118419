"""Train an entry and write its page: results.json, HTML and figures; one page about all entries;
the catalogue as a table.

The page about all entries is made from the ``results.json`` of those that are finished in a folder,
so that it can be asked for at any time. Each verdict names the commit of its trainings, the steps
of distillation and the scale; one of other settings than today's is marked as stale.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privdd.cli.paper_block import paper_block
from privdd.core.validation import BadConfig
from privdd.reporting.figures import save_figure
from privdd.reporting.page import template_environment
from privdd.reproduce.catalogue import PaperEntry, ReproduceArguments, find_entry, load_catalogue
from privdd.reproduce.figures import plot_curves, row_label, run_analyses
from privdd.reproduce.results import (
    CANNOT_TELL,
    HOLDS,
    HOLDS_IN_MEAN,
    REVERSED,
    REVERSED_IN_MEAN,
    EntryResult,
    OrderStatement,
    RowPair,
    TableColumn,
    collect_results,
    compare_entry,
    limit_rows,
)
from privdd.reproduce.train import paper_cells, settings_digest, train_cells
from privdd.runtime.files import read_json, write_bytes, write_json
from privdd.runtime.progress import show_progress

HOLDS_HERE = "holds"
FAILS_HERE = "does not hold"
NOT_DECIDED = "not decided"
NOTHING_TO_COMPARE = "nothing to compare"
NOT_RUN_YET = "not run yet"
NOT_RUN = "not run"
COLUMN_VERDICTS = {  # of a comparison -> of its column
    HOLDS: HOLDS_HERE,
    HOLDS_IN_MEAN: NOT_DECIDED,
    REVERSED_IN_MEAN: NOT_DECIDED,
    REVERSED: FAILS_HERE,
    CANNOT_TELL: CANNOT_TELL,
    "": NOTHING_TO_COMPARE,
}
VERDICT_TEXT = COLUMN_VERDICTS | {
    HOLDS_IN_MEAN: f"{NOT_DECIDED}, ahead in the mean",
    REVERSED_IN_MEAN: f"{NOT_DECIDED}, behind in the mean",
}
TONES = {HOLDS_HERE: "consistent", FAILS_HERE: "contradiction", NOT_DECIDED: "unprotected"}
ENTRY_PAGE = "reproduction.html"
VERDICTS = (
    HOLDS_HERE,
    FAILS_HERE,
    NOT_DECIDED,
    CANNOT_TELL,
    NOTHING_TO_COMPARE,
    NOT_RUN_YET,
    NOT_RUN,
)
PAIR_FIELDS = ("better", "worse", "gain", "p", "limit")  # of a pair in results.json
STAND_IN = " (on a stand-in)"
STALE = "settings changed since, or were not recorded: run it again"
OVERVIEW_PAGE = "index.html"
OVERVIEW_NOTE = (
    "A statement holds where the differences over the seeds decide it (one-sided paired "
    "t-test, 5 %, the largest p of all "
    "pairs), and does not where a pair is reversed at 5 % over their number; else it is "
    "not decided. It cannot be told at a scale where images cannot leave their start, "
    "where a "
    "row is at chance, or where two rows hold the same images. Neither is a failure of "
    "the paper. At a scale below the paper's it "
    "is the order that is compared. Where the "
    "paper's data are not at hand, the column names the paper's and others stand in, "
    "which the entry's page names."
)


@dataclass(frozen=True)
class OverviewLine:
    """One column of an entry, or an entry that has no result. page: relative to the folder, ""
    where there is none;
    made: steps, scale and commit of its trainings; settings: their digest; stale: why it says
        nothing of today's, or ""."""

    entry: str
    shows: str
    column: str
    statement: str
    verdict: str
    detail: str
    command: str
    page: str
    made: str = ""
    settings: str = ""
    stale: str = ""


def count_verdicts(lines: Sequence[OverviewLine]) -> str:
    """ "holds: 16, does not hold: 9, ...; 3 of them of other settings than today's"."""
    text = _verdict_counts(line.verdict for line in lines)
    stale = [line for line in lines if line.stale]
    if not stale:
        return text
    return f"{text}; {len(stale)} of them of other settings than today's"


def _verdict_counts(verdicts: Iterable[str]) -> str:
    counts = Counter(verdicts)
    return ", ".join(f"{kind}: {counts[kind]}" for kind in VERDICTS if counts[kind])


def collect_lines(folder: Path) -> list[OverviewLine]:
    """The lines of every entry of the catalogue, in the papers' order. folder: OUT/SCALE.

    Shows its progress: composing the settings of all rows anew takes a minute.
    """
    lines: list[OverviewLine] = []
    with show_progress("overview", len(load_catalogue())) as bar:
        for entry in load_catalogue().values():
            lines += _lines_of_entry(entry, folder)
            bar.advance(entry.name)
    return lines


def write_overview(folder: Path) -> Path:
    """``index.html`` about all entries of a folder -> its path."""
    lines = collect_lines(folder)
    template = template_environment().get_template("reproductions.html.jinja")
    text = template.render(
        lines=lines,
        counted=count_verdicts(lines),
        meant=OVERVIEW_NOTE,
        tones=TONES,
        scale=folder.name,
    )
    write_bytes(folder / OVERVIEW_PAGE, text.encode(errors="replace"))
    return folder / OVERVIEW_PAGE


def _lines_of_entry(entry: PaperEntry, folder: Path) -> Iterator[OverviewLine]:
    file = folder / entry.name / "results.json"
    if not entry.is_trainable:
        yield OverviewLine(
            entry.name, entry.shows, "", "", NOT_RUN, f"{entry.kind}: {entry.why}", "", ""
        )
    elif not file.is_file():
        command = f"python -m privdd.reproduce {entry.name} scale={folder.name}"
        yield OverviewLine(entry.name, entry.shows, "", "", NOT_RUN_YET, "", command, "")
    else:
        result = read_json(file)
        today = current_digests(entry, folder.name, str(result.get("device")))
        for column in result["columns"]:
            yield _column_line(entry, folder.name, result, column, today)


def current_digests(entry: PaperEntry, scale: str, device: str) -> dict[str, tuple[str, str]]:
    """Column -> the digests that its results may have today: of all its rows, and of those that a
    statement compares, as a row that none compares may be newer than they are."""
    cells = paper_cells(entry, scale, device)
    stated: set[str] = set()
    for statement in entry.ahead:
        stated |= {statement.better, statement.worse}
    digests = {}
    for name in dict.fromkeys(cell.column for cell in cells):
        column = [cell for cell in cells if cell.column == name]
        compared = [cell for cell in column if cell.printed is not None or cell.row in stated]
        digests[name] = settings_digest(column), settings_digest(compared)
    return digests


def _column_line(
    entry: PaperEntry,
    scale: str,
    result: Mapping[str, Any],
    column: Mapping[str, Any],
    today: Mapping[str, Sequence[str]],
) -> OverviewLine:
    statement, verdict, detail = _judge_column(column)
    stands_in = bool(paper_block(entry.experiment)["stand_in"]) or any(
        difference["key"] in ("data.name", "data.source") for difference in result["fidelity"]
    )
    commits = [commit[:7] or "unknown" for commit in column.get("commits", [])] or ["unknown"]
    origin = [column.get("steps", ""), f"scale={scale}", f"commit {', '.join(commits)}"]
    settings = column.get("settings", "")
    return OverviewLine(
        entry=entry.name,
        shows=entry.shows,
        column=f"{column['column']}{STAND_IN if stands_in else ''}",
        statement=statement,
        verdict=verdict,
        detail="; ".join(filter(None, [detail, _format_failures(column)])),
        command=result["command"],
        page=f"{entry.name}/{ENTRY_PAGE}",
        made="; ".join(filter(None, origin)),
        settings=settings,
        stale="" if settings in today.get(column["column"], ()) else STALE,
    )


def _judge_column(column: Mapping[str, Any]) -> tuple[str, str, str]:
    """(the statement, its verdict, by how much) of a column: its leader's, else what the paper's
    text says."""
    leader = column["leader"]
    pairs = leader["pairs"] if leader else column["text"]
    if not pairs:
        return "the paper prints no numbers to compare with", NOTHING_TO_COMPARE, ""
    judged = OrderStatement(tuple(_row_pair(pair) for pair in pairs))
    least = f"{100 * min(pair.gain for pair in judged.pairs):+.1f} points"
    if leader:
        statement = f"{row_label(judged.pairs[0].better)} ahead of all others"
        least += " to the best of the others"
        if judged.p is not None:
            least += f", p {judged.p:.2g}"
        order = column["kendall"]
        if order:
            least += f"; {order['agree']} of {order['pairs']} pairs as in the paper"
    else:
        statement = "; ".join(dict.fromkeys(pair["says"] for pair in pairs))
        if len(pairs) > 1:
            least += f", the least of {len(pairs)}"
    limits = dict.fromkeys(pair.limit for pair in judged.pairs if pair.limit)
    return statement, COLUMN_VERDICTS[judged.verdict], "; ".join([least, *limits])


def _row_pair(pair: Mapping[str, Any]) -> RowPair:
    return RowPair(**{name: pair[name] for name in PAIR_FIELDS if name in pair})


def _format_failures(column: Mapping[str, Any]) -> str:
    failed = sum(len(row["failed"]) for row in column["rows"])
    diverged = sum(row["diverged"] for row in column["rows"])
    parts = [(failed, "trainings failed"), (diverged, "diverged")]
    return ", ".join(f"{count} {what}" for count, what in parts if count)


def reproduce_entry(
    entry: PaperEntry, arguments: ReproduceArguments
) -> tuple[EntryResult, Path, int]:
    """Train what an entry needs, and compare it with the paper.

    Args:
        entry: An entry of the catalogue.
        arguments: Scale, seeds, folder and jobs; what was trained before is not trained again.

    Returns:
        What came out, its page, and how many trainings failed.

    Raises:
        BadConfig: The entry trains nothing; the message says why.
    """
    if not entry.is_trainable:
        raise BadConfig(f"{entry.name}: {entry.kind}: {entry.why}")
    arguments = replace(arguments, seeds=arguments.seeds or tuple(range(entry.seeds)))
    seeds = arguments.seeds
    folder = arguments.out / arguments.scale
    rows = folder / "rows" / entry.experiment
    cells = paper_cells(entry, arguments.scale, arguments.device)
    failed = train_cells(cells, seeds, rows, arguments.jobs, entry.name)
    best = bool(paper_block(entry.experiment)["best"])
    results = limit_rows(collect_results(cells, seeds, rows, best, failed))
    tables, plots = run_analyses(entry.also, cells, seeds, rows)
    compared = compare_entry(entry, arguments, cells, results, tables, plots)
    return compared, write_entry_page(compared, folder / entry.name), len(failed)


def column_headline(column: TableColumn) -> str:
    """One sentence about a column: does the paper's leader lead here?"""
    if column.leader is None:
        if not column.said:
            return "the paper prints no numbers to compare with"
        count = len(column.said)
        kinds = [COLUMN_VERDICTS[pair.verdict_among(count)] for _, pair in column.said]
        return f"{count} comparisons that the text makes; {_verdict_counts(kinds)}"
    best = row_label(column.leader.pairs[0].better)
    if column.leader.p is None:
        p = ""
    else:
        p = f" (p {column.leader.p:.2g})"
    return f"{best} ahead of all others: {VERDICT_TEXT[column.leader.verdict]}{p}"


def write_entry_page(result: EntryResult, folder: Path) -> Path:
    """results.json, the page and the figures of an entry -> the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", result.as_json())
    curves = {column.name: plot_curves(column) for column in result.columns}
    template = template_environment().get_template("reproduction.html.jinja")
    words = {
        "label": row_label,
        "headline": column_headline,
        "says": VERDICT_TEXT,
        "tone": _page_tone(result),
    }
    text = template.render(r=result, drawn=curves, **words)
    write_bytes(folder / ENTRY_PAGE, text.encode(errors="replace"))
    for plots in (*curves.values(), result.plots):
        for plot in plots:
            # figures of a paper are asked for to stand in a paper
            save_figure(plot.figure, plot.drawing, folder / "figures", plot.name, pdf=True)
    return folder / ENTRY_PAGE


def _page_tone(result: EntryResult) -> str:
    kinds = {column.leader.verdict for column in result.columns if column.leader}
    if REVERSED in kinds:
        return "contradiction"
    return "consistent" if kinds == {HOLDS} else "plain"


def print_result(result: EntryResult, page: Path, failed: int) -> None:
    for column in result.columns:
        print(f"{result.entry.name}, {column.name}: {column_headline(column)}")
    if failed:
        print(
            f"privdd: error: {failed} trainings failed; the page says which and why",
            file=sys.stderr,
        )
    print(f"page: {page}", flush=True)


def run_entry(arguments: ReproduceArguments) -> int:
    """Status 1 where a training failed."""
    result, page, failed = reproduce_entry(find_entry(arguments.name), arguments)
    print_result(result, page, failed)
    return int(failed > 0)


def run_all(arguments: ReproduceArguments) -> int:
    """Every entry that runs here, one after the other; the page about all of them grows with
    each."""
    status = 0
    names = [name for name, entry in load_catalogue().items() if entry.is_trainable]
    for name in names:
        status |= run_entry(replace(arguments, name=name))
        write_overview(arguments.out / arguments.scale)
    print_overview(arguments)
    return status


def print_overview(arguments: ReproduceArguments) -> int:
    """The page about all entries, from what is finished."""
    print(f"overview: {write_overview(arguments.out / arguments.scale)}")
    return 0

"""Train an entry and write its page: results.json, HTML and figures; one page about all entries;
the catalogue as a table.

The page about all entries is made from the ``results.json`` of those that are finished in a folder,
so that it can be asked for at any time. Each verdict names the commit of its trainings, the steps
of distillation and the scale; one of other settings than today's is marked as stale.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from privdd.cli.paper_rows import paper_block
from privdd.core.validation import BadConfig
from privdd.reporting.figures import save_figure
from privdd.reporting.page import template_environment
from privdd.reporting.terminal import console_for
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
    describe_stand_in,
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


def count_verdicts(found: Sequence[OverviewLine]) -> str:
    """ "holds: 16, does not hold: 9, ...; 3 of them of other settings than today's"."""
    counts = Counter(line.verdict for line in found)
    old = sum(bool(line.stale) for line in found)
    counted = ", ".join(f"{kind}: {counts[kind]}" for kind in VERDICTS if counts[kind])
    return f"{counted}; {old} of them of other settings than today's" if old else counted


def collect_lines(folder: Path) -> list[OverviewLine]:
    """The lines of every entry of the catalogue, in the papers' order. folder: OUT/SCALE.

    Shows its progress: composing the settings of all rows anew takes a minute.
    """
    found: list[OverviewLine] = []
    with show_progress("overview", len(load_catalogue())) as bar:
        for entry in load_catalogue().values():
            found += _lines_of_entry(entry, folder)
            bar.advance(entry.name)
    return found


def write_overview(folder: Path) -> Path:
    """``index.html`` about all entries of a folder -> its path."""
    found = collect_lines(folder)
    template = template_environment().get_template("reproductions.html.jinja")
    text = template.render(
        lines=found,
        counted=count_verdicts(found),
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
    said = {row for one in entry.ahead for row in (one.better, one.worse)}
    found = {}
    for name in dict.fromkeys(cell.column for cell in cells):
        column = [cell for cell in cells if cell.column == name]
        compared = [cell for cell in column if cell.printed is not None or cell.row in said]
        found[name] = settings_digest(column), settings_digest(compared)
    return found


def _column_line(
    entry: PaperEntry,
    scale: str,
    result: Mapping[str, Any],
    column: Mapping[str, Any],
    today: Mapping[str, Sequence[str]],
) -> OverviewLine:
    statement, verdict, detail = _judge_column(column)
    other = any(one["key"] in ("data.name", "data.source") for one in result["fidelity"])
    other = other or bool(paper_block(entry.experiment)["stand_in"])
    commits = (
        ", ".join(commit[:7] or "unknown" for commit in column.get("commits", [])) or "unknown"
    )
    made = [column.get("steps", ""), f"scale={scale}", f"commit {commits}"]
    settings = column.get("settings", "")
    return OverviewLine(
        entry=entry.name,
        shows=entry.shows,
        column=f"{column['column']}{STAND_IN if other else ''}",
        statement=statement,
        verdict=verdict,
        detail="; ".join(filter(None, [detail, _format_failures(column)])),
        command=result["command"],
        page=f"{entry.name}/{ENTRY_PAGE}",
        made="; ".join(filter(None, made)),
        settings=settings,
        stale="" if settings in today.get(column["column"], ()) else STALE,
    )


def _judge_column(column: Mapping[str, Any]) -> tuple[str, str, str]:
    """(the statement, its verdict, by how much) of a column: its leader's, else what the paper's
    text says."""
    leader = column["leader"]
    said = column["text"]
    pairs = leader["pairs"] if leader else said
    if not pairs:
        return "the paper prints no numbers to compare with", NOTHING_TO_COMPARE, ""
    known = [{name: pair[name] for name in PAIR_FIELDS if name in pair} for pair in pairs]
    judged = OrderStatement(tuple(RowPair(**one) for one in known))
    least = f"{100 * min(pair.gain for pair in judged.pairs):+.1f} points"
    if leader:
        statement = f"{row_label(judged.pairs[0].better)} ahead of all others"
        agreed = column["kendall"]
        least += " to the best of the others" + ("" if judged.p is None else f", p {judged.p:.2g}")
        least += f"; {agreed['agree']} of {agreed['pairs']} pairs as in the paper" if agreed else ""
    else:
        statement = "; ".join(dict.fromkeys(pair["says"] for pair in said))
        least += f", the least of {len(said)}" if len(said) > 1 else ""
    limits = dict.fromkeys(pair.limit for pair in judged.pairs if pair.limit)
    return statement, COLUMN_VERDICTS[judged.verdict], "; ".join([least, *limits])


def _format_failures(column: Mapping[str, Any]) -> str:
    failed = sum(len(row["failed"]) for row in column["rows"])
    diverged = sum(row["diverged"] for row in column["rows"])
    parts = [(failed, "trainings failed"), (diverged, "diverged")]
    return ", ".join(f"{count} {what}" for count, what in parts if count)


def reproduce_entry(entry: PaperEntry, asked: ReproduceArguments) -> tuple[EntryResult, Path, int]:
    """(what came out, its page, how many trainings failed). What was trained before is not trained
    again.

    Raises BadConfig for an entry that trains nothing, with the reason.
    """
    if not entry.is_trainable:
        raise BadConfig(f"{entry.name}: {entry.kind}: {entry.why}")
    asked = replace(asked, seeds=asked.seeds or tuple(range(entry.seeds)))
    made = paper_cells(entry, asked.scale, asked.device)
    rows = asked.out / asked.scale / "rows" / entry.experiment
    failed = train_cells(made, asked.seeds, rows, asked.jobs, entry.name)
    best = bool(paper_block(entry.experiment)["best"])
    found = limit_rows(collect_results(made, asked.seeds, rows, best, failed))
    tables, drawn = run_analyses(entry.also, made, asked.seeds, rows)
    compared = compare_entry(entry, asked, made, found, tables, drawn)
    return compared, write_entry_page(compared, asked.out / asked.scale / entry.name), len(failed)


def column_headline(column: TableColumn) -> str:
    """One sentence about a column: does the paper's leader lead here?"""
    if column.leader is None:
        if not column.said:
            return "the paper prints no numbers to compare with"
        kinds = Counter(
            COLUMN_VERDICTS[pair.verdict_among(len(column.said))] for _, pair in column.said
        )
        counted = ", ".join(f"{kind}: {kinds[kind]}" for kind in VERDICTS if kinds[kind])
        return f"{len(column.said)} comparisons that the text makes; {counted}"
    best = row_label(column.leader.pairs[0].better)
    p = "" if column.leader.p is None else f" (p {column.leader.p:.2g})"
    return f"{best} ahead of all others: {VERDICT_TEXT[column.leader.verdict]}{p}"


def write_entry_page(found: EntryResult, folder: Path) -> Path:
    """results.json, the page and the figures of an entry -> the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", found.as_json())
    drawn = {column.name: plot_curves(column) for column in found.columns}
    template = template_environment().get_template("reproduction.html.jinja")
    words = {
        "label": row_label,
        "headline": column_headline,
        "says": VERDICT_TEXT,
        "tone": _page_tone(found),
    }
    text = template.render(r=found, drawn=drawn, **words)
    write_bytes(folder / ENTRY_PAGE, text.encode(errors="replace"))
    for several in (*drawn.values(), found.plots):
        for plot in several:
            # figures of a paper are asked for to stand in a paper
            save_figure(plot.figure, plot.drawing, folder / "figures", plot.name, pdf=True)
    return folder / ENTRY_PAGE


def _page_tone(found: EntryResult) -> str:
    kinds = {column.leader.verdict for column in found.columns if column.leader}
    if REVERSED in kinds:
        return "contradiction"
    return "consistent" if kinds == {HOLDS} else "plain"


def print_result(found: EntryResult, page: Path, failed: int) -> None:
    for column in found.columns:
        print(f"{found.entry.name}, {column.name}: {column_headline(column)}")
    if failed:
        print(
            f"privdd: error: {failed} trainings failed; the page says which and why",
            file=sys.stderr,
        )
    print(f"page: {page}", flush=True)


def run_entry(asked: ReproduceArguments) -> int:
    """Status 1 where a training failed."""
    found, page, failed = reproduce_entry(find_entry(asked.name), asked)
    print_result(found, page, failed)
    return int(failed > 0)


def run_all(asked: ReproduceArguments) -> int:
    """Every entry that runs here, one after the other; the page about all of them grows with
    each."""
    status = 0
    for name in (name for name, entry in load_catalogue().items() if entry.is_trainable):
        status |= run_entry(replace(asked, name=name))
        write_overview(asked.out / asked.scale)
    print_overview(asked)
    return status


def print_overview(asked: ReproduceArguments) -> int:
    """The page about all entries, from what is finished."""
    print(f"overview: {write_overview(asked.out / asked.scale)}")
    return 0


def describe_availability(entry: PaperEntry) -> str:
    """Does it run here, on which data, and if not, why?"""
    if not entry.is_trainable:
        return f"{entry.kind}: {entry.why}"
    stands_in = describe_stand_in(entry, "small")
    if not stands_in:
        return "runs on the paper's data"
    return (
        f"runs, {stands_in.partition(';')[0]}; scale=paper needs {', '.join(entry.needs)}, "
        "and a GPU"
    )


def print_catalogue(asked: ReproduceArguments) -> int:
    table = Table(title="Tables and figures of the papers", title_justify="left")
    for name in ("entry", "what it shows", "here"):
        table.add_column(name, overflow="fold", no_wrap=name == "entry")
    entries = load_catalogue().values()
    for entry in entries:
        table.add_row(
            *(Text(part) for part in (entry.name, entry.shows, describe_availability(entry)))
        )
    console_for(sys.stdout).print(table)
    runs = sum(entry.is_trainable for entry in entries)
    print(
        f"{len(entries)} entries, {runs} of which run here; python -m privdd.reproduce "
        "NAME scale=small"
    )
    return 0

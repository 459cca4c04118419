"""Train an entry and write its page: results.json, HTML and figures; one page about all entries; the catalogue as a table.

The page about all entries is made from the ``results.json`` of those that are finished in a folder, so that it can be asked
for at any time. Each verdict names the commit of its trainings, the steps of distillation and the scale; one of other settings
than today's is marked as stale.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from attacks.types import Surface
from privdd.cli.paper_rows import build_row_experiment, flat_settings_of, paper_block
from privdd.core.validation import BadConfig
from privdd.distillation.private_matching import GRADIENT_QUERY
from privdd.federated.experiment import Experiment
from privdd.models import projected_shape
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
    RowResult,
    TableColumn,
    collect_results,
    compare_entry,
    feature_tables,
)
from privdd.reproduce.train import STEPS, PaperCell, device_overrides, paper_cells, settings_digest, train_cells
from privdd.runtime.files import read_json, write_bytes, write_json
from privdd.runtime.progress import show_progress

# What a scale is too small for: rows whose numbers say nothing of the paper's statement, and why.
#
# A comparison of two rows *cannot be told at this scale* where the images of one cannot move as far as their start is from
# anything, where one is at chance, or where both hold the same images. Its verdict would be one on the scale, not on the paper.


@lru_cache(maxsize=8)
def _cell_experiment(overrides: tuple[str, ...]) -> Experiment:
    return build_row_experiment(overrides, 0)


def clipped_reach(experiment: Experiment) -> tuple[float, float] | None:
    """(clip norm x rate x steps / (1 - momentum), the furthest that the images of a class can move without their noise;
    the norm of their N(0, 1) start). None where no class's mean gradient is clipped."""
    plan, mechanism = experiment.plan, experiment.plan.mechanisms.get(GRADIENT_QUERY)
    if mechanism is None or mechanism.per_record:
        return None
    method, shape = plan.method, plan.problem.shape
    if Surface.SYNTHETIC_REPRESENTATIONS in method.uploads.values():  # FedRD's images are of its projection's space
        shape = projected_shape(method.projection, shape)  # type: ignore[attr-defined]
    steps = method.matching  # type: ignore[attr-defined]
    reach = mechanism.clip_norm * steps.lr * steps.iterations / (1 - steps.momentum)  # type: ignore[attr-defined]
    return reach, math.sqrt(method.audit_hooks.images_per_class() * math.prod(shape))


def image_movement(experiment: Experiment) -> float:
    """How far matching moves the images of the client with most records in the first round, as a share of their norm."""
    plan, shard = experiment.plan, max(experiment.shards, key=lambda one: len(one.train))
    method, sent = plan.method, []
    still = replace(method, matching=replace(method.matching, iterations=0))  # type: ignore[attr-defined,type-var]
    for one in (still, method):
        broadcast, ctx = one.broadcast(one.init(plan.problem, plan.keys)), plan.client_context(0, shard.client)
        upload = one.local(broadcast, {}, shard, ctx)[0]
        sent.append(next(upload[name] for name in ("images", "representations") if name in upload).value["x"])
    return float((sent[1] - sent[0]).norm() / sent[0].norm())


def is_at_chance(accuracies: Sequence[float], classes: int, tests: int) -> bool:
    """Whether the 95 % interval of the mean accuracy includes one in ``classes``, or lies below it. Its standard error is
    the larger of that over seeds and that of ``tests`` records."""
    mean = float(np.mean(accuracies))
    spread = float(np.std(accuracies, ddof=1)) / math.sqrt(len(accuracies)) if len(accuracies) > 1 else 0.0
    return mean - 1.96 * max(spread, math.sqrt(mean * (1 - mean) / tests)) <= 1 / classes


def row_limit(row: RowResult) -> str:
    """Why the numbers of this row say nothing; "" where they do."""
    if not row.curves:
        return ""
    experiment = _cell_experiment(row.cell.overrides)
    reach = clipped_reach(experiment)
    if reach is not None and reach[0] < reach[1]:
        return f"images can move by {reach[0]:.3g} and start at a norm of {reach[1]:.3g}"
    classes, tests = experiment.dataset.classes, len(experiment.test_records)
    if is_at_chance(row.accuracies, classes, tests):
        return f"at chance: {100 * float(np.mean(row.accuracies)):.1f} % of {classes} classes"
    return ""


def limit_rows(rows: Sequence[RowResult]) -> list[RowResult]:
    """The rows with what limits them. Movement is measured beside a row of the same column in which nothing is matched."""
    steps = [flat_settings_of(row.cell.overrides).get(STEPS) for row in rows]
    still = {row.cell.column for row, count in zip(rows, steps, strict=True) if count == 0}
    return [
        replace(row, limit=row_limit(row), moved=_row_movement(row, count) if row.cell.column in still else None)
        for row, count in zip(rows, steps, strict=True)
    ]


def _row_movement(row: RowResult, steps: int | None) -> float | None:
    if steps is None or not row.curves:
        return None
    return image_movement(_cell_experiment(row.cell.overrides)) if steps else 0.0


HOLDS_HERE, FAILS_HERE, NOT_DECIDED = "holds", "does not hold", "not decided"
NOTHING_TO_COMPARE, NOT_RUN_YET, NOT_RUN = "nothing to compare", "not run yet", "not run"
VERDICTS = (HOLDS_HERE, FAILS_HERE, NOT_DECIDED, CANNOT_TELL, NOTHING_TO_COMPARE, NOT_RUN_YET, NOT_RUN)
STALE = "settings changed since, or were not recorded: run it again"
OVERVIEW_PAGE, SUMMARY_TABLE = "index.html", "summary.md"
OVERVIEW_NOTE = (
    "A statement holds, or does not, where the differences over the seeds decide it (one-sided paired t-test, 5 %, the "
    "largest p of all pairs); else it is not decided. It cannot be told at a scale where images cannot leave their start, where a "
    "row is at chance, or where two rows hold the same images. Neither is a failure of the paper. At a scale below the paper's it "
    "is the order that is compared. Where the "
    "paper's data are not at hand, the column names the paper's and others stand in, which the entry's page names."
)


@dataclass(frozen=True)
class OverviewLine:
    """One column of an entry, or an entry that has no result. page: relative to the folder, "" where there is none;
    made: steps, scale and commit of its trainings; settings: their digest; stale: why it says nothing of today's, or ""."""

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
    counts, old = Counter(line.verdict for line in found), sum(bool(line.stale) for line in found)
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
    """``index.html`` and ``summary.md`` -> the page."""
    found = collect_lines(folder)
    tones = {HOLDS_HERE: "consistent", FAILS_HERE: "contradiction", NOT_DECIDED: "unprotected"}
    shown = {
        "lines": found,
        "counted": count_verdicts(found),
        "meant": OVERVIEW_NOTE,
        "tones": tones,
        "scale": folder.name,
    }
    text = template_environment().get_template("reproductions.html.jinja").render(**shown)
    write_bytes(folder / OVERVIEW_PAGE, text.encode(errors="replace"))
    write_bytes(folder / SUMMARY_TABLE, format_markdown(found).encode())
    return folder / OVERVIEW_PAGE


def format_markdown(found: list[OverviewLine]) -> str:
    """The lines as a Markdown table, without entries that were not run."""
    rows = [
        f"| {one.entry} | {one.column} | {one.statement} | {one.verdict} | {one.detail} | {one.made} | {one.stale} | {one.settings} | `{one.command}` |"
        for one in found
        if one.page
    ]
    names = "entry | column | statement | here | how far | made with | stale | settings | command"
    return "\n".join([f"| {names} |", "|---" * 9 + "|", *rows]) + "\n"


def _lines_of_entry(entry: PaperEntry, folder: Path) -> Iterator[OverviewLine]:
    file = folder / entry.name / "results.json"
    if not entry.is_trainable:
        yield OverviewLine(entry.name, entry.shows, "", "", NOT_RUN, f"{entry.kind}: {entry.why}", "", "")
    elif not file.is_file():
        command = f"python -m privdd.reproduce {entry.name} scale={folder.name}"
        yield OverviewLine(entry.name, entry.shows, "", "", NOT_RUN_YET, "", command, "")
    else:
        result = read_json(file)
        today = current_digests(entry, folder.name, str(result.get("device")))
        for column in result["columns"]:
            yield _column_line(entry, folder.name, result, column, today)


def current_digests(entry: PaperEntry, scale: str, device: str) -> dict[str, str]:
    """Column -> the digest that its results would have today."""
    cells = paper_cells(entry, scale, device_overrides(device))
    names = dict.fromkeys(cell.column for cell in cells)
    return {name: settings_digest([cell for cell in cells if cell.column == name]) for name in names}


def _column_line(
    entry: PaperEntry, scale: str, result: Mapping[str, Any], column: Mapping[str, Any], today: Mapping[str, str]
) -> OverviewLine:
    statement, verdict, detail = _judge_column(column)
    detail = "; ".join(filter(None, [detail, _format_failures(column)]))
    other = any(one["key"] in ("data.name", "data.source") for one in result["fidelity"])
    other = other or bool(paper_block(entry.experiment)["stand_in"])
    commits = ", ".join(commit[:7] or "unknown" for commit in column.get("commits", [])) or "unknown"
    made, settings = [column.get("steps", ""), f"scale={scale}", f"commit {commits}"], column.get("settings", "")
    return OverviewLine(
        entry.name,
        entry.shows,
        f"{column['column']}{' (on a stand-in)' if other else ''}",
        statement,
        verdict,
        detail,
        result["command"],
        f"{entry.name}/{ENTRY_PAGE}",
        "; ".join(filter(None, made)),
        settings,
        "" if settings and settings == today.get(column["column"]) else STALE,
    )


def _judge_column(column: Mapping[str, Any]) -> tuple[str, str, str]:
    """(the statement, its verdict, by how much) of a column: its leader's, else what the paper's text says."""
    leader, said = column["leader"], column["text"]
    if leader is not None and leader["pairs"]:
        gains = [100 * pair["gain"] for pair in leader["pairs"]]
        p = "" if leader["p"] is None else f", p {leader['p']:.2g}"
        detail = f"{min(gains):+.1f} points to the best of the others{p}{_format_agreement(column)}{_format_limits(leader['pairs'])}"
        return (
            f"{row_label(leader['pairs'][0]['better'])} ahead of all others",
            _column_verdict(leader["verdict"]),
            detail,
        )
    if said:
        kinds = [_column_verdict(pair["verdict"]) for pair in said]
        verdict = next(kind for kind in (FAILS_HERE, CANNOT_TELL, NOT_DECIDED, HOLDS_HERE) if kind in kinds)
        gains = [100 * pair["gain"] for pair in said]
        least = f"{min(gains):+.1f} points, the least of {len(gains)}" if len(gains) > 1 else f"{gains[0]:+.1f} points"
        return "; ".join(dict.fromkeys(pair["says"] for pair in said)), verdict, f"{least}{_format_limits(said)}"
    return "the paper prints no numbers to compare with", NOTHING_TO_COMPARE, ""


def _column_verdict(kind: str) -> str:
    return {HOLDS: HOLDS_HERE, REVERSED: FAILS_HERE, CANNOT_TELL: CANNOT_TELL}.get(kind, NOT_DECIDED)


def _format_limits(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Why pairs say nothing, each reason once."""
    return "".join(f"; {limit}" for limit in dict.fromkeys(pair.get("limit", "") for pair in pairs) if limit)


def _format_agreement(column: Mapping[str, Any]) -> str:
    found = column["kendall"]
    return "" if found is None else f"; {found['agree']} of {found['pairs']} pairs as in the paper"


def _format_failures(column: Mapping[str, Any]) -> str:
    failed = sum(len(row["failed"]) for row in column["rows"])
    diverged = sum(row["diverged"] for row in column["rows"])
    parts = [(failed, "trainings failed"), (diverged, "diverged")]
    return ", ".join(f"{count} {what}" for count, what in parts if count)


ENTRY_PAGE = "reproduction.html"
VERDICT_TEXT = {
    HOLDS: "holds",
    HOLDS_IN_MEAN: "not decided, ahead in the mean",
    REVERSED_IN_MEAN: "not decided, behind in the mean",
    REVERSED: "does not hold",
    CANNOT_TELL: CANNOT_TELL,
    "": "nothing to compare",
}


def plan_cells(entry: PaperEntry, asked: ReproduceArguments) -> list[PaperCell]:
    """Raises BadConfig for an entry that trains nothing, with the reason."""
    if not entry.is_trainable:
        raise BadConfig(f"{entry.name}: {entry.kind}: {entry.why}")
    return paper_cells(entry, asked.scale, device_overrides(asked.device))


def reproduce_entry(entry: PaperEntry, asked: ReproduceArguments) -> tuple[EntryResult, Path, int]:
    """(what came out, its page, how many trainings failed). What was trained before is not trained again."""
    asked = replace(asked, seeds=asked.seeds or tuple(range(entry.seeds)))
    made = plan_cells(entry, asked)
    rows = asked.out / asked.scale / "rows" / entry.experiment
    failed = train_cells(made, asked.seeds, rows, asked.jobs, entry.name)
    best = bool(paper_block(entry.experiment)["best"])
    found = limit_rows(collect_results(made, asked.seeds, rows, best, failed))
    extra = feature_tables(made, asked.seeds, asked.out / asked.scale / "rows") if entry.features else []
    more, drawn = run_analyses(entry.also, made, asked.seeds, rows)
    compared = compare_entry(entry, asked, made, found, [*extra, *more], drawn)
    return compared, write_entry_page(compared, asked.out / asked.scale / entry.name), len(failed)


def column_headline(column: TableColumn) -> str:
    """One sentence about a column: does the paper's leader lead here?"""
    if column.leader is None:
        if not column.said:
            return "the paper prints no numbers to compare with"
        kinds = [pair.verdict for _, pair in column.said]
        return f"of {len(kinds)} comparisons that the text makes, {sum(k == HOLDS for k in kinds)} hold"
    best = row_label(column.leader.pairs[0].better)
    p = "" if column.leader.p is None else f" (p {column.leader.p:.2g})"
    return f"{best} ahead of all others: {VERDICT_TEXT[column.leader.verdict]}{p}"


def write_entry_page(found: EntryResult, folder: Path) -> Path:
    """results.json, the page and the figures of an entry -> the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", found.as_json())
    drawn = {column.name: plot_curves(column) for column in found.columns}
    text = (
        template_environment()
        .get_template("reproduction.html.jinja")
        .render(
            r=found, drawn=drawn, label=row_label, headline=column_headline, says=VERDICT_TEXT, tone=_page_tone(found)
        )
    )
    write_bytes(folder / ENTRY_PAGE, text.encode(errors="replace"))
    for several in (*drawn.values(), found.plots):
        for plot in several:
            save_figure(plot.figure, plot.drawing, folder / "figures", plot.name)
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
        print(f"privdd: error: {failed} trainings failed; the page says which and why", file=sys.stderr)
    print(f"page: {page}", flush=True)


def run_entry(asked: ReproduceArguments) -> int:
    found, page, failed = reproduce_entry(find_entry(asked.name), asked)
    print_result(found, page, failed)
    return int(failed > 0)


def run_all(asked: ReproduceArguments) -> int:
    """Every entry that runs here, one after the other; the page about all of them grows with each."""
    failures = 0
    for entry in load_catalogue().values():
        if entry.is_trainable:
            found, page, failed = reproduce_entry(entry, replace(asked, name=entry.name))
            print_result(found, page, failed)
            write_overview(asked.out / asked.scale)
            failures += failed
    print_overview(asked)
    return int(failures > 0)


def print_overview(asked: ReproduceArguments) -> int:
    """The page about all entries, from what is finished."""
    print(f"overview: {write_overview(asked.out / asked.scale)}")
    return 0


def describe_availability(entry: PaperEntry) -> str:
    """Does it run here, on which data, and if not, why?"""
    if not entry.is_trainable:
        return f"{entry.kind}: {entry.why}"
    paper = paper_block(entry.experiment)
    stands_in = [part for part in (paper["stand_in"], paper["offline"]["note"]) if part]
    if not stands_in:
        return "runs on the paper's data"
    return f"runs, {stands_in[0].partition(';')[0]}; scale=paper needs {', '.join(entry.needs)}, and a GPU"


def print_catalogue(file: IO[str]) -> None:
    table = Table(title="Tables and figures of the papers", title_justify="left")
    for name in ("entry", "what it shows", "here"):
        table.add_column(name, overflow="fold", no_wrap=name == "entry")
    for entry in load_catalogue().values():
        table.add_row(*(Text(part) for part in (entry.name, entry.shows, describe_availability(entry))))
    console_for(file).print(table)
    runs = sum(entry.is_trainable for entry in load_catalogue().values())
    print(
        f"{len(load_catalogue())} entries, {runs} of which run here; python -m privdd.reproduce NAME scale=small",
        file=file,
    )

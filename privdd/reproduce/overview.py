"""One page about all entries: what holds, what does not, what is not decided, what was not run; with every command.

It is made from the ``results.json`` of the entries that are finished in a folder, so that it can be asked for at any time.
A result of other settings than today's is named, and not shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privdd.cli.paper_rows import paper_of
from privdd.reporting.plots import environment
from privdd.reproduce.entries import PaperEntry, catalogue
from privdd.reproduce.entry_figures import label
from privdd.reproduce.paper_order import HOLDS, REVERSED
from privdd.reproduce.plan_rows import settings_mark
from privdd.runtime.files import read_json, write_bytes
from privdd.runtime.progress import stage

YES, NO, OPEN = "holds", "does not hold", "not decided"
FIGURES, LATER, NEVER, STALE = "nothing to compare", "not run yet", "not run", "of earlier settings"
OLD = "a setting of its rows has another value now, or the result does not say which it had: run it again"
PAGE, TABLE = "index.html", "summary.md"
MEANT = (
    "A statement holds, or does not, where the differences over the seeds decide it (one-sided paired t-test, 5 %, the "
    "largest p of all pairs); else it is not decided. At a scale below the paper's it is the order that is compared. Where the "
    "paper's data are not at hand, the column names the paper's and others stand in, which the entry's page names."
)


@dataclass(frozen=True)
class Line:
    """One column of an entry, or an entry that has no result. page: relative to the folder, "" where there is none."""

    entry: str
    shows: str
    column: str
    statement: str
    verdict: str
    detail: str
    command: str
    page: str


def lines(folder: Path) -> list[Line]:
    """Of every entry of the catalogue, in the papers' order, with progress: each row's settings are composed anew, which
    takes a minute for all of them. folder: OUT/SCALE."""
    found: list[Line] = []
    with stage("overview", len(catalogue())) as bar:
        for entry in catalogue().values():
            found += _of(entry, folder)
            bar.advance(entry.name)
    return found


def write_overview(folder: Path) -> Path:
    """``index.html`` and ``summary.md`` -> the page."""
    found = lines(folder)
    counts = Counter(line.verdict for line in found)
    counted = ", ".join(
        f"{counts[kind]} {kind}" for kind in (YES, NO, OPEN, FIGURES, STALE, LATER, NEVER) if counts[kind]
    )
    tones = {YES: "consistent", NO: "contradiction", OPEN: "unprotected"}
    shown = {"lines": found, "counted": counted, "meant": MEANT, "tones": tones, "scale": folder.name}
    text = environment().get_template("reproductions.html.jinja").render(**shown)
    write_bytes(folder / PAGE, text.encode(errors="replace"))
    write_bytes(folder / TABLE, markdown(found).encode())
    return folder / PAGE


def markdown(found: list[Line]) -> str:
    """The same as a table, without what was not run."""
    rows = [
        f"| {one.entry} | {one.column} | {one.statement} | {one.verdict} | {one.detail} | `{one.command}` |"
        for one in found
        if one.page
    ]
    return "\n".join(["| entry | column | statement | here | how far | command |", "|---" * 6 + "|", *rows]) + "\n"


def _of(entry: PaperEntry, folder: Path) -> Iterator[Line]:
    file = folder / entry.name / "results.json"
    if not entry.runs:
        yield Line(entry.name, entry.shows, "", "", NEVER, f"{entry.kind}: {entry.why}", "", "")
    elif not file.is_file():
        command = f"python -m privdd.reproduce {entry.name} scale={folder.name}"
        yield Line(entry.name, entry.shows, "", "", LATER, "", command, "")
    elif not _of_today(result := read_json(file), entry, folder.name):
        yield Line(entry.name, entry.shows, "", "", STALE, OLD, result["command"], "")
    else:
        for column in result["columns"]:
            statement, verdict, detail = _judged(column)
            page = f"{entry.name}/reproduction.html"
            detail = "; ".join(filter(None, [detail, _missing(column)]))
            other = any(one["key"] in ("data.name", "data.source") for one in result["fidelity"])
            other = other or bool(paper_of(entry.experiment)["stand_in"])
            where = f"{column['column']}{' (on a stand-in)' if other else ''}"
            yield Line(entry.name, entry.shows, where, statement, verdict, detail, result["command"], page)


def _of_today(result: Mapping[str, Any], entry: PaperEntry, scale: str) -> bool:
    """Whether its rows were trained under the settings that they would be trained under now."""
    made = result.get("settings")
    return made is not None and made == settings_mark(entry.name, scale, str(result.get("device")))


def _judged(column: Mapping[str, Any]) -> tuple[str, str, str]:
    """(the statement, its verdict, by how much) of a column: its leader's, else what the paper's text says."""
    leader, said = column["leader"], column["text"]
    if leader is not None and leader["pairs"]:
        gains = [100 * pair["gain"] for pair in leader["pairs"]]
        p = "" if leader["p"] is None else f", p {leader['p']:.2g}"
        detail = f"{min(gains):+.1f} points to the best of the others{p}{_agreement(column)}"
        return f"{label(leader['pairs'][0]['better'])} ahead of all others", _verdict(leader["verdict"]), detail
    if said:
        kinds = [_verdict(pair["verdict"]) for pair in said]
        verdict = NO if NO in kinds else YES if {*kinds} == {YES} else OPEN
        gains = [100 * pair["gain"] for pair in said]
        least = f"{min(gains):+.1f} points, the least of {len(gains)}" if len(gains) > 1 else f"{gains[0]:+.1f} points"
        return "; ".join(dict.fromkeys(pair["says"] for pair in said)), verdict, least
    return "the paper prints no numbers to compare with", FIGURES, ""


def _verdict(kind: str) -> str:
    return {HOLDS: YES, REVERSED: NO}.get(kind, OPEN)


def _agreement(column: Mapping[str, Any]) -> str:
    found = column["kendall"]
    return "" if found is None else f"; {found['agree']} of {found['pairs']} pairs as in the paper"


def _missing(column: Mapping[str, Any]) -> str:
    failed = sum(len(row["failed"]) for row in column["rows"])
    diverged = sum(row["diverged"] for row in column["rows"])
    parts = [(failed, "trainings failed"), (diverged, "diverged")]
    return ", ".join(f"{count} {what}" for count, what in parts if count)

"""The catalogue as a table for the terminal."""

from __future__ import annotations

from typing import IO

from rich.table import Table
from rich.text import Text

from privdd.cli.paper_rows import paper_of
from privdd.reporting.terminal import console_for
from privdd.reproduce.entries import PaperEntry, catalogue


def where(entry: PaperEntry) -> str:
    """Does it run here, on which data, and if not, why?"""
    if not entry.runs:
        return f"{entry.kind}: {entry.why}"
    paper = paper_of(entry.experiment)
    stands_in = [part for part in (paper["stand_in"], paper["offline"]["note"]) if part]
    if not stands_in:
        return "runs on the paper's data"
    return f"runs, {stands_in[0].partition(';')[0]}; scale=paper needs {', '.join(entry.needs)}, and a GPU"


def print_list(file: IO[str]) -> None:
    table = Table(title="Tables and figures of the papers", title_justify="left")
    for name in ("entry", "what it shows", "here"):
        table.add_column(name, overflow="fold", no_wrap=name == "entry")
    for entry in catalogue().values():
        table.add_row(*(Text(part) for part in (entry.name, entry.shows, where(entry))))
    console_for(file).print(table)
    runs = sum(entry.runs for entry in catalogue().values())
    print(
        f"{len(catalogue())} entries, {runs} of which run here; python -m privdd.reproduce NAME scale=small", file=file
    )

"""The catalogue as a table: what each entry shows, and what runs here. Imports no torch."""

from __future__ import annotations

import sys

from rich.table import Table
from rich.text import Text

from privdd.cli.paper_block import paper_block
from privdd.reporting.console import console_for
from privdd.reproduce.catalogue import (
    PaperEntry,
    ReproduceArguments,
    load_catalogue,
    paper_details,
)
from privdd.reproduce.code_digest import line_staleness


def describe_stand_in(entry: PaperEntry, scale: str) -> str:
    """The note on stand-in data; "" where the data are the paper's."""
    paper = paper_block(entry.experiment)
    parts = [paper["stand_in"], "" if scale == "paper" else paper["offline"]["note"]]
    return "; ".join(part for part in parts if part)


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


def print_catalogue(arguments: ReproduceArguments) -> int:
    table = Table(title="Tables and figures of the papers", title_justify="left")
    for name in ("entry", "content", "here"):
        table.add_column(name, overflow="fold", no_wrap=name == "entry")
    entries = load_catalogue().values()
    for entry in entries:
        cells = (entry.name, entry.shows, describe_availability(entry))
        table.add_row(*(Text(cell) for cell in cells))
    console_for(sys.stdout).print(table)
    console_for(sys.stdout).print(_equation_table())
    runs = len([entry for entry in entries if entry.is_trainable])
    print(
        f"{len(entries)} entries, {runs} of which run here; python -m privdd.reproduce "
        "NAME scale=small"
    )
    return 0


def _equation_table() -> Table:
    """Every numbered equation of the papers, and where it is computed."""
    table = Table(title="Equations of the papers", title_justify="left")
    for name in ("equation", "statement", "here", "computed by"):
        table.add_column(name, overflow="fold", no_wrap=name == "equation")
    for paper, details in paper_details().items():
        for equation in details["equations"]:
            note = f"{equation['is']}; stale" if line_staleness(equation) else equation["is"]
            cells = (
                f"{paper} {equation['number']}",
                equation["what"],
                note,
                equation.get("about", ""),
            )
            table.add_row(*(Text(cell) for cell in cells))
    return table

"""The documentation's table of verdicts on the papers' sentences, from stored results: nothing is
trained.

    python -m benchmarks.reproduction [--results outputs/reproduce/small] [--write
    docs/reproduction.md]

The table (data/reproduction-verdicts.csv beside the page) is the store. Columns that are finished
below --results take the place of theirs, and their accuracies by seed, from which every p follows,
go to data/reproduction-seeds.csv; then every row is compared with today's settings and code of its
trainings and with today's words, which takes a few minutes of CPU time, and marked as stale where
one has changed; and what the page counts and sums up, between comments, is written anew."""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from attacks.command_line import CommandParser
from privdd.reproduce.catalogue import find_entry, load_catalogue, paper_details
from privdd.reproduce.page import (
    DECIDING,
    NOT_JUDGED,
    NOT_RUN_YET,
    OverviewLine,
    collect_lines,
    count_verdicts,
    current_digests,
    distinct_comparisons,
    distinct_sentences,
    find_staleness,
)
from privdd.runtime.files import read_json, write_bytes
from privdd.runtime.progress import show_progress

SECTION = r"(<!-- {} -->\n).*?(\n<!-- end -->)"
# field of a row -> its title in the file
VERDICT_COLUMNS = {
    "entry": "entry",
    "column": "column",
    "statement": "sentence",
    "verdict": "here",
    "detail": "how far",
    "made": "made with",
    "stale": "stale",
    "settings": "settings",
    "code": "code",
    "command": "command",
}
SEED_COLUMNS = {
    "entry": "entry",
    "column": "column",
    "row": "row",
    "seed": "seed",
    "accuracy": "accuracy",
    "speed": "mean over rounds",
    "code": "code",
}


@dataclass(frozen=True)
class SeedAccuracy:
    """One training. accuracy, speed: in [0, 1], of the round that counts and mean over all rounds;
    code: digest of the code that trained it, "" if that is not known."""

    entry: str
    column: str
    row: str
    seed: int
    accuracy: float
    speed: float
    code: str


TableRow = TypeVar("TableRow", OverviewLine, SeedAccuracy)


@dataclass(frozen=True)
class StoredTable(Generic[TableRow]):
    """Rows in a CSV file.

    columns: field of a row -> its title; parse: text by field -> a row.
    """

    file: Path
    columns: Mapping[str, str]
    parse: Callable[[Mapping[str, str]], TableRow]

    def read(self) -> list[TableRow]:
        """The stored rows; none without a file."""
        if not self.file.is_file():
            return []
        reader = csv.DictReader(io.StringIO(self.file.read_text(encoding="utf-8")))
        rows = []
        for cells in reader:
            values = {name: cells[title] for name, title in self.columns.items()}
            rows.append(self.parse(values))
        return rows

    def write(self, rows: Sequence[TableRow]) -> None:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns.values())
        for row in rows:
            writer.writerow([getattr(row, name) for name in self.columns])
        write_bytes(self.file, buffer.getvalue().encode())


def seed_table(page: Path) -> StoredTable[SeedAccuracy]:
    """The accuracies by seed beside a page."""
    file = page.parent / "data" / f"{page.stem}-seeds.csv"
    return StoredTable(file, SEED_COLUMNS, _parse_seed)


def verdict_table(page: Path) -> StoredTable[OverviewLine]:
    """The verdicts beside a page."""
    file = page.parent / "data" / f"{page.stem}-verdicts.csv"
    return StoredTable(file, VERDICT_COLUMNS, _parse_verdict)


def _parse_seed(values: Mapping[str, str]) -> SeedAccuracy:
    return SeedAccuracy(
        entry=values["entry"],
        column=values["column"],
        row=values["row"],
        seed=int(values["seed"]),
        accuracy=float(values["accuracy"]),
        speed=float(values["speed"]),
        code=values["code"],
    )


def _parse_verdict(values: Mapping[str, str]) -> OverviewLine:
    return OverviewLine(shows="", page="stored", **values)


def collect_seeds(folder: Path) -> list[SeedAccuracy]:
    """Of every entry that is finished below OUT/SCALE."""
    return list(_iterate_seeds(folder))


def _iterate_seeds(folder: Path) -> Iterator[SeedAccuracy]:
    files = {name: folder / name / "results.json" for name in load_catalogue()}
    for name, file in files.items():
        columns = read_json(file)["columns"] if file.is_file() else []
        for column in columns:
            for row in column["rows"]:
                code = " ".join(row["codes"])
                for seed, accuracy in row["by_seed"].items():
                    speed = row["speed_by_seed"][seed]
                    place = (name, column["column"], row["row"], int(seed))
                    yield SeedAccuracy(*place, accuracy, speed, code)


def write_sections(page: Path, lines: Sequence[OverviewLine]) -> None:
    """Write anew what the page counts and sums up.

    Raises:
        ValueError: A section is not there once.
    """
    text = page.read_text(encoding="utf-8")
    sections = {"counted": describe_counts(lines), "sentences": summarise_sentences(lines)}
    for name, content in sections.items():
        before, rest = _split_at_section(text, name, page)
        text = before + content + rest
    write_bytes(page, text.encode())


def _split_at_section(text: str, name: str, page: Path) -> tuple[str, str]:
    """What stands before and after the content of a section."""
    matches = list(re.finditer(SECTION.format(name), text, re.S))
    if len(matches) != 1:
        raise ValueError(f"{page}: must hold <!-- {name} --> and <!-- end --> once, each on a line")
    (section,) = matches
    return text[: section.end(1)], text[section.start(2) :]


def describe_counts(lines: Sequence[OverviewLine]) -> str:
    """The sentence of the page that counts."""
    entries = len(load_catalogue())
    running = sum(entry.is_trainable for entry in load_catalogue().values())
    tried = len({line.entry for line in lines if line.verdict != NOT_RUN_YET})
    sentences = [line for line in lines if line.verdict in DECIDING]
    comparisons = distinct_comparisons(sentences)
    waiting = sum(line.verdict == NOT_JUDGED for line in lines)
    return (
        f"{entries} entries, of which {running} run here; {tried} of these were trained at "
        f"`scale=small`. They judge {len(sentences)} times a sentence of a paper, by "
        f"{len(comparisons)} different comparisons of trainings: {count_verdicts(sentences)}. "
        f"{waiting} further lines were trained before and are not judged since: their "
        "accuracies by seed were not stored."
    )


def summarise_sentences(lines: Sequence[OverviewLine]) -> str:
    """A table for each paper: every sentence that was judged, where, and what came out."""
    judged = [line for line in distinct_sentences(lines) if line.verdict in DECIDING]
    return "\n\n".join(_paper_table(paper, judged) for paper in paper_details())


def _paper_table(paper: str, lines: Sequence[OverviewLine]) -> str:
    rows = [
        f"| {line.statement} | `{line.entry}`, {line.column} | {_format_outcome(line)} |"
        for line in lines
        if find_entry(line.entry).paper == paper
    ]
    head = (
        f"{paper_details()[paper]['title']}:",
        "",
        "| sentence | judged on | here |",
        "|---|---|---|",
    )
    return "\n".join([*head, *rows])


def _format_outcome(line: OverviewLine) -> str:
    """The verdict, or what the line counts as with the verdict that was seen there."""
    return line.verdict if line.kind == line.verdict else f"{line.kind} ({line.verdict})"


def merge_lines(stored: Sequence[TableRow], new: Sequence[TableRow]) -> list[TableRow]:
    """The stored rows, but for entries with new ones, whose rows all take their place, in the
    catalogue's order."""
    again = {row.entry for row in new}
    merged = [*(row for row in stored if row.entry not in again), *new]
    order = list(load_catalogue())
    return sorted(merged, key=lambda row: order.index(row.entry))


def mark_stale(lines: Sequence[OverviewLine], scale: str = "small") -> list[OverviewLine]:
    """Each line with today's answer to whether its settings, code or words have changed."""
    return list(_mark_lines(lines, scale))


def _mark_lines(lines: Sequence[OverviewLine], scale: str) -> Iterator[OverviewLine]:
    names = dict.fromkeys(line.entry for line in lines)
    today = {}
    with show_progress("today's settings and code", len(names)) as bar:
        for name in names:
            today[name] = current_digests(find_entry(name), scale, "cpu")
            bar.advance(name)
    for line in lines:
        yield replace(line, stale=find_staleness(line, today[line.entry]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, help="OUT/SCALE of privdd.reproduce")
    parser.add_argument("--write", type=Path, default=Path("docs/reproduction.md"), metavar="PAGE")
    options = parser.parse_args(argv)
    table = verdict_table(options.write)
    new_lines: list[OverviewLine] = []
    if options.results:
        new_lines = [line for line in collect_lines(options.results) if line.page]
    lines = mark_stale(merge_lines(table.read(), new_lines))
    write_sections(options.write, lines)
    table.write(lines)
    if options.results:
        seeds = seed_table(options.write)
        seeds.write(merge_lines(seeds.read(), collect_seeds(options.results)))
    print(describe_counts(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

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

SECTION = r"(<!-- {} -->\n).*?(\n<!-- end -->)"
FIELDS = (
    "entry",
    "column",
    "statement",
    "verdict",
    "detail",
    "made",
    "stale",
    "settings",
    "code",
    "command",
)
TITLES = (
    "entry",
    "column",
    "sentence",
    "here",
    "how far",
    "made with",
    "stale",
    "settings",
    "code",
    "command",
)
SEED_TITLES = ("entry", "column", "row", "seed", "accuracy", "mean over rounds", "code")


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


@dataclass(frozen=True)
class SeedTable:
    """The accuracies by seed beside a page."""

    page: Path

    @property
    def file(self) -> Path:
        return self.page.parent / "data" / f"{self.page.stem}-seeds.csv"

    def read(self) -> list[SeedAccuracy]:
        if not self.file.is_file():
            return []
        rows = csv.DictReader(io.StringIO(self.file.read_text(encoding="utf-8")))
        return [_parse_seed([row[title] for title in SEED_TITLES]) for row in rows]

    def write(self, rows: Sequence[SeedAccuracy]) -> None:
        buffer = io.StringIO()
        table = csv.writer(buffer, lineterminator="\n")
        table.writerow(SEED_TITLES)
        names = [field.name for field in fields(SeedAccuracy)]
        table.writerows([getattr(row, name) for name in names] for row in rows)
        write_bytes(self.file, buffer.getvalue().encode())


TableRow = TypeVar("TableRow", OverviewLine, SeedAccuracy)


def _parse_seed(values: Sequence[str]) -> SeedAccuracy:
    entry, column, row, seed, accuracy, speed, code = values
    return SeedAccuracy(entry, column, row, int(seed), float(accuracy), float(speed), code)


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


@dataclass(frozen=True)
class VerdictTable:
    """The table beside a page."""

    page: Path

    @property
    def file(self) -> Path:
        return self.page.parent / "data" / f"{self.page.stem}-verdicts.csv"

    def read(self) -> list[OverviewLine]:
        rows = csv.DictReader(io.StringIO(self.file.read_text(encoding="utf-8")))
        made = (
            {name: row[title] for name, title in zip(FIELDS, TITLES, strict=True)} for row in rows
        )
        return [OverviewLine(shows="", page="stored", **values) for values in made]

    def write(self, lines: Sequence[OverviewLine]) -> None:
        buffer = io.StringIO()
        table = csv.writer(buffer, lineterminator="\n")
        table.writerow(TITLES)
        table.writerows([asdict(line)[name] for name in FIELDS] for line in lines)
        write_bytes(self.file, buffer.getvalue().encode())
        text = self.page.read_text(encoding="utf-8")
        text = self._write_section(text, "counted", describe_counts(lines))
        text = self._write_section(text, "sentences", summarise_sentences(lines))
        write_bytes(self.page, text.encode())

    def _write_section(self, text: str, name: str, content: str) -> str:
        pattern = re.compile(SECTION.format(name), re.S)
        text, count = pattern.subn(lambda match: match[1] + content + match[2], text)
        if count != 1:
            raise ValueError(
                f"{self.page}: must hold <!-- {name} --> and <!-- end --> once, each on a line"
            )
        return text


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
    today = {name: current_digests(find_entry(name), scale, "cpu") for name in names}
    for line in lines:
        yield replace(line, stale=find_staleness(line, today[line.entry]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, help="OUT/SCALE of privdd.reproduce")
    parser.add_argument("--write", type=Path, default=Path("docs/reproduction.md"), metavar="PAGE")
    given = parser.parse_args(argv)
    table = VerdictTable(given.write)
    new = [line for line in collect_lines(given.results) if line.page] if given.results else []
    lines = mark_stale(merge_lines(table.read(), new))
    table.write(lines)
    if given.results:
        seeds = SeedTable(given.write)
        seeds.write(merge_lines(seeds.read(), collect_seeds(given.results)))
    print(describe_counts(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

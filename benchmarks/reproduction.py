"""The documentation's table of verdicts on the papers' sentences, from stored results: nothing is
trained.

    python -m benchmarks.reproduction [--results outputs/reproduce/small] [--write
    docs/reproduction.md]

The table (data/reproduction-verdicts.csv beside the page) is the store. Columns that are finished
below --results take the place of theirs; then every row is compared with today's settings and code
of its trainings and with today's words, which takes a few minutes of CPU time, and marked as stale
where one has changed; and what the page counts and sums up, between comments, is written anew."""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from attacks.command_line import CommandParser
from privdd.reproduce.catalogue import find_entry, load_catalogue, paper_details
from privdd.reproduce.page import (
    DECIDING,
    NOT_RUN_YET,
    OverviewLine,
    collect_lines,
    count_verdicts,
    current_digests,
    distinct_lines,
    find_staleness,
)
from privdd.runtime.files import write_bytes

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
    distinct = distinct_lines(sentences)
    waiting = sum(line.verdict == NOT_RUN_YET for line in lines)
    return (
        f"{entries} entries, of which {running} run here; {tried} of these were run at "
        f"`scale=small`. They judge {len(sentences)} times a sentence of a paper, which are "
        f"{len(distinct)} different comparisons of trainings: {count_verdicts(sentences)}. "
        f"{waiting} lines wait for a training with today's code."
    )


def summarise_sentences(lines: Sequence[OverviewLine]) -> str:
    """A table for each paper: every sentence that was judged, where, and what came out."""
    judged = [line for line in distinct_lines(lines) if line.verdict in DECIDING]
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


def merge_lines(stored: Sequence[OverviewLine], new: Sequence[OverviewLine]) -> list[OverviewLine]:
    """The stored lines, but for entries with new ones, whose lines all take their place, in the
    catalogue's order."""
    again = {line.entry for line in new}
    merged = [*(line for line in stored if line.entry not in again), *new]
    order = list(load_catalogue())
    return sorted(merged, key=lambda line: order.index(line.entry))


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
    print(describe_counts(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

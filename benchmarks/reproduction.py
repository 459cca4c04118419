"""The documentation's table of verdicts on the papers' tables and figures, from stored results:
nothing is trained.

    python -m benchmarks.reproduction [--results outputs/reproduce/small] [--write
    docs/reproduction.md]

The table (data/reproduction-verdicts.csv beside the page) is the store. Columns that are finished
below --results take the place of theirs; then every row is compared with today's settings of its
trainings, which takes a minute or two of CPU time, and marked as stale where these have changed;
and what the page counts, between two comments, is counted anew."""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from attacks.command_line import CommandParser
from privdd.reproduce.catalogue import find_entry, load_catalogue
from privdd.reproduce.page import (
    STALE,
    STAND_IN,
    OverviewLine,
    collect_lines,
    count_verdicts,
    current_digests,
)
from privdd.runtime.files import write_bytes

COUNTED = re.compile(r"(<!-- counted -->\n).*?(\n<!-- end -->)", re.S)
FIELDS = (
    "entry",
    "column",
    "statement",
    "verdict",
    "detail",
    "made",
    "stale",
    "settings",
    "command",
)
TITLES = (
    "entry",
    "column",
    "statement",
    "here",
    "how far",
    "made with",
    "stale",
    "settings",
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
        text, found = COUNTED.subn(
            rf"\g<1>{describe_counts(lines)}\g<2>", self.page.read_text(encoding="utf-8")
        )
        if found != 1:
            raise ValueError(
                f"{self.page}: must hold <!-- counted --> and <!-- end --> once, each on a line"
            )
        write_bytes(self.page, text.encode())


def describe_counts(lines: Sequence[OverviewLine]) -> str:
    """The sentence of the page that counts."""
    entries = len(load_catalogue())
    running = sum(entry.is_trainable for entry in load_catalogue().values())
    tried = len({line.entry for line in lines})
    return (
        f"{entries} entries, of which {running} run here; {tried} of these were run at "
        f"`scale=small`. Of their {len(lines)} columns: "
        f"{count_verdicts(lines)}."
    )


def merge_lines(stored: Sequence[OverviewLine], new: Sequence[OverviewLine]) -> list[OverviewLine]:
    """The stored lines with those of the same entry and column replaced, in the catalogue's
    order."""
    kept = {(line.entry, line.column): line for line in (*stored, *new)}
    order = list(load_catalogue())
    return sorted(kept.values(), key=lambda line: order.index(line.entry))


def mark_stale(lines: Sequence[OverviewLine], scale: str = "small") -> list[OverviewLine]:
    """Each line with today's answer to whether its settings have changed."""
    today = {
        name: current_digests(find_entry(name), scale, "cpu")
        for name in dict.fromkeys(x.entry for x in lines)
    }

    def is_current(line: OverviewLine) -> bool:
        return line.settings in today[line.entry].get(line.column.removesuffix(STAND_IN), ())

    return [replace(line, stale="" if is_current(line) else STALE) for line in lines]


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

"""The documentation shows the rows of its long tables, and the files hold the same."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from privdd.reporting.export import (
    MOST_COLUMNS,
    OPEN_ROWS,
    WIDEST_CELL,
    shown_table,
    split_markdown_tables,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
LINK = re.compile(r"\[(\d+) rows\]\(data/([\w-]+\.csv)\) as CSV")
PAGES = [page for page in sorted(DOCS.glob("*.md")) if LINK.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_the_rows_of_its_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for count, name in LINK.findall(text):
        with (DOCS / "data" / name).open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        assert len(rows) == int(count)
        assert shown_table(header, rows, name) in text, name


def test_every_long_table_of_the_documentation_is_shown() -> None:
    assert len(PAGES) >= 9
    bare = re.compile(r"^\[\d+ rows\]\(data/[\w-]+\.csv\):", re.M)
    assert [page.name for page in DOCS.glob("**/*.md") if bare.search(page.read_text())] == []


@pytest.mark.parametrize("count", [OPEN_ROWS, OPEN_ROWS + 1])
def test_a_table_is_shortened_and_folded_if_it_is_long(count: int) -> None:
    columns = MOST_COLUMNS + 1
    names = [f"c{at}" for at in range(columns)]
    cells = ["x" * 8 + " y" * WIDEST_CELL, *["a\\|b<c>"] * (columns - 1)]
    table = [names, ["---"] * columns, *[cells] * count]
    text = "before\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in table)
    padded = text.replace("x y", "x  y")  # as numbers are for a terminal
    page, files = split_markdown_tables(padded, "page")
    assert page.startswith("before\n\n") and page.count("a\\|b&lt;c>") == count * (columns - 2)
    assert ("<details markdown>" in page) is (count > OPEN_ROWS)
    assert page.rstrip().endswith(f"[{count} rows](data/page-1.csv) as CSV, with c{columns - 1}.")
    assert all(len(cell) <= WIDEST_CELL for cell in re.findall(r"\| (x[^|]*) \|", page))
    header, *rows = csv.reader(files["page-1.csv"].splitlines())
    assert header == names and rows == [[cells[0], *["a|b<c>"] * (columns - 1)]] * count

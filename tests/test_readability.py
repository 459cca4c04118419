"""No package gets denser: ``tests/readability.json`` holds the figures of ``tools/readability.py``
that it may not exceed.

After a figure fell, write them down by ``python -m tests.test_readability``. What the columns
count, and when to leave a figure as it is, stands there; lines and files are not counted."""

from __future__ import annotations

import json
from pathlib import Path

from tools.readability import COLUMNS, ROOT, count_file, count_packages

FIGURES = Path(__file__).with_name("readability.json")
HELD = tuple(column for column in COLUMNS if column != "comment")
# A clean statement that goes raises the rate of all others: so much of a rise is no worse sentence.
TOLERANCE = {"tokens": 0.1, "parallel": 1.0, "ternary": 1.0, "packed": 1.0, "words": 0.2, "late": 0}

PACKED_MODULE = '''"""A docstring is no statement, and its a, b = c, d no assignment."""
import os
# why
LIMIT = 3
def measure(found, rows, other=None):
    """A sentence."""
    low, high = rows[0], rows[1]
    first, second = divmod(low, high)
    flat = [x for row in rows for x in row]
    nested = [max(x for x in row) for row in rows]
    return flat if found else nested  # no line of its own
LATE = 4
'''


def current_figures() -> dict[str, dict[str, float]]:
    """package -> column -> figure, of the columns that are held."""
    figures = {package: counts.figures() for package, counts in count_packages(ROOT).items()}
    return {
        package: {column: columns[column] for column in HELD}
        for package, columns in figures.items()
    }


def denser(figures: dict[str, dict[str, float]], held: dict[str, dict[str, float]]) -> list[str]:
    """Each figure of a package above the one held; a new package is held to the median of all."""
    lines = []
    for package, columns in figures.items():
        for column, figure in columns.items():
            if package in held:
                limit = held[package][column]
            else:
                rates = sorted(row[column] for row in held.values())
                limit = rates[len(rates) // 2]
            if figure > limit + TOLERANCE[column] + 1e-9:
                lines.append(f"{package}: {column} rose from {limit} to {figure}")
    return lines


def test_no_package_got_denser() -> None:
    assert denser(current_figures(), json.loads(FIGURES.read_text())) == [], (
        "python tools/readability.py --worst names the files"
    )


def test_a_denser_package_is_seen() -> None:
    held = {"a": dict.fromkeys(HELD, 2.0), "b": dict.fromkeys(HELD, 4.0)}
    assert denser(held, held) == []
    for column in HELD:
        above = {"a": {**held["a"], column: 3.1}}
        assert denser(above, held) == [f"a: {column} rose from 2.0 to 3.1"]
    assert denser({"new": dict.fromkeys(HELD, 5.1)}, held)


def test_what_each_column_counts() -> None:
    counts = count_file(PACKED_MODULE)
    assert counts.statements == 9  # import, def, return, and six assignments
    assert counts.parallel == 1
    assert counts.packed == 2
    assert counts.ternary == 1
    assert counts.comments == 1
    assert counts.late == 1
    # LIMIT, LATE, found, rows, other, low, high, first, second, flat, nested, and in comprehensions
    # row, x, row, x
    assert (counts.names, counts.listed) == (15, 2)
    assert count_file("a = b + 1\n").tokens == 5
    assert count_file("def f(): pass\nclass A: pass\nnumber = 1\n").late == 0


if __name__ == "__main__":
    FIGURES.write_text(json.dumps(current_figures(), indent=1) + "\n")

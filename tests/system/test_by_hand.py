"""Every cross-check that docs/explanation/by-hand.md names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "explanation" / "by-hand.md").read_text(encoding="utf-8")


def test_named_tests_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)
    assert len(named) >= 18
    for path, function in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text, f"{path}::{function}"


def test_everything_by_hand_has_a_reason_and_a_cross_check() -> None:
    table = TEXT[TEXT.index("## Written by hand") : TEXT.index("## Left to a library")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 15
    assert [row[0] for row in rows if len(row) != 4 or not all(row) or "tests/" not in row[3]] == []

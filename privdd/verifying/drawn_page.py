"""``report.html`` and ``card.json`` against what the folder's own files give."""

from __future__ import annotations

import re
from collections.abc import Iterator

from privdd.reporting.card import card_bytes
from privdd.reporting.folder import RunRecord
from privdd.reporting.page import draw, render
from privdd.reporting.plots import albums
from privdd.runtime.files import read_bytes
from privdd.runtime.seal import CARD, DRAWN_WITH, PAGE, library
from privdd.verifying.disagreement import Disagreement

LARGEST = 256 * 2**20  # bytes
DRAWING = re.compile(rb"<svg\b.*?</svg>|data:image/png;base64,[A-Za-z0-9+/=]*", re.DOTALL)


def check_page(record: RunRecord) -> Iterator[Disagreement]:
    """The page and its card are made again and compared byte by byte.

    Where it was drawn by another version of Matplotlib (see ``other_library``), the drawings inside it are left out. A
    folder without a page has nothing to check.
    """
    card = record.path / CARD
    if card.is_file() and read_bytes(card, LARGEST) != card_bytes(record):
        yield Disagreement(CARD, "all of it", "another card", "the one that the run's files give")
    file = record.path / PAGE
    if not file.is_file():
        return
    stored, found = read_bytes(file, LARGEST), render(record, draw(record), albums(record)).encode(errors="replace")
    if stored == found:
        return
    if DRAWING.sub(b"", stored) == DRAWING.sub(b"", found):
        if not other_library(record):
            yield Disagreement(PAGE, "drawings", "other ones", "those of the evidence (the text agrees)")
        return
    at = next((i for i, (a, b) in enumerate(zip(_lines(stored), _lines(found))) if a != b), 0)
    one, other = (b"".join(_lines(text)[at : at + 1]).decode(errors="replace").strip() for text in (stored, found))
    yield Disagreement(PAGE, f"line {at + 1}", repr(one[:80]), repr(other[:80]))


def other_library(record: RunRecord) -> str:
    """What drew the page, where this machine has another version; else ""."""
    drawn = record.manifest.get(DRAWN_WITH)
    return "" if drawn in (None, library()) else str(drawn)[:60]


def _lines(page: bytes) -> list[bytes]:
    return DRAWING.sub(b"", page).splitlines()

"""``report.html`` against the page that the folder's own files give."""

from __future__ import annotations

import re
from collections.abc import Iterator

from privdd.reporting.folder import RunRecord
from privdd.reporting.page import draw, render
from privdd.reporting.plots import albums
from privdd.runtime.run_folder import read_bytes
from privdd.runtime.seal import PAGE
from privdd.verifying.disagreement import Disagreement

LARGEST = 256 * 2**20  # bytes
DRAWING = re.compile(rb"<svg\b.*?</svg>|data:image/png;base64,[A-Za-z0-9+/=]*", re.DOTALL)


def check_page(record: RunRecord) -> Iterator[Disagreement]:
    """The page is drawn again and compared byte by byte; the note says where the text alone is the same.

    A folder without a page has nothing to check.
    """
    file = record.path / PAGE
    if not file.is_file():
        return
    stored, found = read_bytes(file, LARGEST), render(record, draw(record), albums(record)).encode(errors="replace")
    if stored == found:
        return
    if DRAWING.sub(b"", stored) == DRAWING.sub(b"", found):
        yield Disagreement(PAGE, "drawings", "other ones", "the text agrees (drawn by another version of Matplotlib?)")
        return
    at = next((i for i, (a, b) in enumerate(zip(_lines(stored), _lines(found))) if a != b), 0)
    one, other = (b"".join(_lines(text)[at : at + 1]).decode(errors="replace").strip() for text in (stored, found))
    yield Disagreement(PAGE, f"line {at + 1}", repr(one[:80]), repr(other[:80]))


def _lines(page: bytes) -> list[bytes]:
    return DRAWING.sub(b"", page).splitlines()

"""Are the rows of a column on equal terms? What differs is said, with the reason that the experiment gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privdd.cli.equal_terms import differing, reason
from privdd.cli.paper_rows import paper_of, terms_of
from privdd.reproduce.entries import PaperEntry, differs_at
from privdd.reproduce.plan_rows import PaperCell

UNSAID = "no reason is given: do not compare this row with the others"


@dataclass(frozen=True)
class Uneven:
    """One row that differs from most others of its column in one term."""

    column: str
    row: str
    term: str
    why: str


def uneven(entry: PaperEntry, scale: str, made: Sequence[PaperCell]) -> list[Uneven]:
    """Every row whose rounds, participation, network, data, local training or privacy are not those of the others."""
    said = paper_of(entry.experiment)["differs"]
    here = differs_at(scale)
    found = []
    for column in dict.fromkeys(cell.column for cell in made):
        terms = {cell.row: terms_of(cell.overrides) for cell in made if cell.column == column}
        for term, rows in differing(terms).items():
            found += [
                Uneven(column, row, term, reason(said, term, row) or reason(here, term, row) or UNSAID)
                for row in terms
                if row in rows
            ]
    return found

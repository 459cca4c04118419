"""Every resolved setting of a run that is not the paper's, and what else keeps its numbers from being comparable.

The settings are found by comparing each row's config with the same row at preset=paper on the paper's own data. What
differs at every scale, because the paper leaves it open or privdd does it otherwise, is written in the catalogue.
Directions are judgements, not measurements. Rows of one column that are on unequal terms are named with the reason that the
experiment gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privdd.cli.paper_rows import differing, paper_of, reason, settings_of, terms_of
from privdd.reproduce.entries import PaperEntry, differs_at, papers
from privdd.reproduce.plan_rows import PaperCell, paper_cell

DIRECTIONS = (  # start of a key -> which way it is likely to push, most particular first
    ("data.name", "another task: numbers are not comparable, the order may be"),
    ("data.source", "another task: numbers are not comparable, the order may be"),
    ("data.size", "smaller images: lower for all"),
    ("data.limit", "fewer records: lower for all, least for methods that share data"),
    ("data.test_limit", "coarser accuracies"),
    ("data.corruptions", "fewer domains: easier for all"),
    ("algo.rounds", "fewer rounds: lower, most for methods that average models"),
    ("algo.base.rounds", "fewer rounds: lower, most for methods that average models"),
    ("algo.matching", "a coarser match: lower where distilled data are sent"),
    ("algo.virtual", "coarser virtual data: lower for all rows that train on them"),
    ("algo.server", "shorter training on the server: lower where it trains"),
    ("algo.generator", "a smaller generator: lower for FedFed"),
    ("algo.distill", "shorter distillation: lower for FedFed"),
    ("model", "a smaller network: lower for all"),
    ("algo.model", "a smaller network: lower for all"),
    ("partition", "other clients"),
)
UNKNOWN = "unknown"
UNSAID = "no reason is given: do not compare this row with the others"


@dataclass(frozen=True)
class Difference:
    """One setting. rows: those that it holds for, empty for all of them."""

    key: str
    ours: Any
    paper: Any
    rows: tuple[str, ...]

    @property
    def direction(self) -> str:
        return next((says for start, says in DIRECTIONS if self.key.startswith(start)), UNKNOWN)


def differences(entry: PaperEntry, made: Sequence[PaperCell]) -> list[Difference]:
    """Of all cells, those of one key and two values together. A copy of the model within a method is not named again."""
    found: dict[tuple[str, str, str], list[str]] = {}
    values: dict[tuple[str, str, str], tuple[Any, Any]] = {}
    for cell in made:
        ours, theirs = settings_of(cell.overrides), settings_of(paper_cell(entry, cell).overrides)
        for key in sorted({*ours, *theirs}):
            here, there = ours.get(key), theirs.get(key)
            if here != there and not _copy(key, ours, here):
                mark = (key, repr(here), repr(there))
                values[mark] = (here, there)
                found.setdefault(mark, []).append(cell.row)
    everyone = {cell.row for cell in made}
    return [
        Difference(mark[0], *values[mark], () if {*rows} == everyone else tuple(dict.fromkeys(rows)))
        for mark, rows in sorted(found.items())
    ]


def _copy(key: str, settings: dict[str, Any], value: Any) -> bool:
    """algo.model.width, where it is model.width."""
    at = key.find(".model.")
    return at > 0 and settings.get(key[at + 1 :]) == value


def lasting(entry: PaperEntry) -> list[dict[str, str]]:
    """What differs at every scale: what, paper, direction."""
    return list(papers()[entry.paper]["deviations"])


def stand_in(entry: PaperEntry, scale: str) -> str:
    """What the data stand in for, "" where they are the paper's."""
    paper = paper_of(entry.experiment)
    parts = [paper["stand_in"], "" if scale == "paper" else paper["offline"]["note"]]
    return "; ".join(part for part in parts if part)


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

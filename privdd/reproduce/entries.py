"""The catalogue: every table and figure of the papers, what runs it, and where it cannot be run."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from privdd.core.errors import BadConfig

FILE = Path(__file__).parent / "catalogue.yaml"
SCALES = ("small", "medium", "paper")
RUNS, ELSEWHERE, NOTHING, OUT = "rows", "elsewhere", "nothing to run", "out of reach"


@dataclass(frozen=True)
class Ahead:
    """A sentence of the paper's text: one row is better than another. rows: as in the experiment's columns."""

    better: str
    worse: str
    says: str


@dataclass(frozen=True)
class PaperEntry:
    """One table or figure.

    experiment: the file in configs/experiment whose rows it shows, "" where none are trained for it; kind: one of
    ``RUNS``, ``ELSEWHERE``, ``NOTHING``, ``OUT``; why: of the last three; needs: data sets of the paper that do not come
    with privdd; small: the columns that scale=small trains (empty: all);
    features: measure x, x_s and x_r as well (``feature_kinds``); also: further tables and figures (``analyses``).
    """

    name: str
    shows: str
    experiment: str = ""
    kind: str = RUNS
    why: str = ""
    needs: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    features: bool = False
    also: tuple[str, ...] = ()
    ahead: tuple[Ahead, ...] = ()
    overrides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """feddm, fedrd, fedfed or fedlgd."""
        return self.name.split(".")[0]

    @property
    def runs(self) -> bool:
        return self.kind == RUNS


@cache
def _file() -> Mapping[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return found


@cache
def catalogue() -> Mapping[str, PaperEntry]:
    """name -> entry, in the papers' order."""
    return {name: _entry(name, part) for name, part in _file()["entries"].items()}


def _entry(name: str, part: Mapping[str, Any]) -> PaperEntry:
    given = dict(part)
    ahead = tuple(Ahead(**one) for one in given.pop("ahead", ()))
    needs, small, also = (tuple(given.pop(key, ())) for key in ("needs", "small", "also"))
    own = {scale: tuple(items) for scale, items in given.pop("overrides", {}).items()}
    return PaperEntry(name, needs=needs, small=small, also=also, ahead=ahead, overrides=own, **given)


def papers() -> Mapping[str, Mapping[str, Any]]:
    """feddm, ... -> title, and ``deviations``: what differs from the paper at every scale."""
    found: Mapping[str, Mapping[str, Any]] = _file()["papers"]
    return found


def scale_overrides(entry: PaperEntry, scale: str, row: str = "", column: Sequence[str] = ()) -> tuple[str, ...]:
    """What a scale sets: the preset, the paper's own scale, what one method or a column's setting needs, the entry's own last."""
    family = _file()["scales"][scale]
    method = next((items for start, items in family.get("rows", {}).items() if starts(row, start)), ())
    where = (item for setting, items in family.get("where", {}).items() if setting in column for item in items)
    return (*family["all"], *family.get(entry.paper, ()), *method, *where, *entry.overrides.get(scale, ()))


def differs_at(scale: str) -> Mapping[str, Mapping[str, str]]:
    """term -> start of a row -> why its rows are on unequal terms at this scale alone."""
    found: Mapping[str, Mapping[str, str]] = _file()["scales"][scale].get("differs", {})
    return found


def starts(row: str, start: str) -> bool:
    """Whether a row begins with these whole words."""
    return row == start or row.startswith(f"{start} ")


def find(name: str) -> PaperEntry:
    """Raises BadConfig, with the nearest name, for one that is not in the catalogue."""
    known = catalogue()
    if name in known:
        return known[name]
    raise BadConfig(f"{name}: no such entry; {_meant(name, [*known, 'all', 'list', 'overview', 'privacy'])}")


def _meant(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "python -m privdd.reproduce list shows all"

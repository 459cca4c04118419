"""The catalogue: every table and figure of the papers, what runs it, and where it cannot be run."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from privdd.core.validation import BadConfig

CATALOGUE_FILE = Path(__file__).parent / "catalogue.yaml"
PAPER_FOLDER = Path(__file__).parent / "papers"
SCALES = ("small", "medium", "paper")
RUNS_HERE, SHOWN_ELSEWHERE, NOTHING_TO_RUN, OUT_OF_REACH = "rows", "elsewhere", "nothing to run", "out of reach"


@dataclass(frozen=True)
class StatedOrder:
    """A sentence of the paper's text: one row is better than another. rows: as in the experiment's columns."""

    better: str
    worse: str
    says: str


@dataclass(frozen=True)
class PaperEntry:
    """One table or figure.

    experiment: the file in configs/experiment whose rows it shows, "" where none are trained for it; kind: one of
    ``RUNS_HERE``, ``SHOWN_ELSEWHERE``, ``NOTHING_TO_RUN``, ``OUT_OF_REACH``; why: of the last three; needs: data sets of the paper that do not come
    with privdd; small, medium: the columns that this scale trains (empty: all);
    features: measure x, x_s and x_r as well (``feature_kinds``); also: further tables and figures (``analyses``); seeds: how
    many it has where none are asked for.
    """

    name: str
    shows: str
    experiment: str = ""
    kind: str = RUNS_HERE
    why: str = ""
    needs: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    medium: tuple[str, ...] = ()
    features: bool = False
    seeds: int = 3
    also: tuple[str, ...] = ()
    ahead: tuple[StatedOrder, ...] = ()
    overrides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """feddm, fedrd, fedfed or fedlgd."""
        return self.name.split(".")[0]

    @property
    def is_trainable(self) -> bool:
        return self.kind == RUNS_HERE


@cache
def _read_catalogue() -> Mapping[str, Any]:
    found: dict[str, Any] = yaml.safe_load(CATALOGUE_FILE.read_text(encoding="utf-8"))
    return found


@cache
def load_catalogue() -> Mapping[str, PaperEntry]:
    """name -> entry, in the papers' order."""
    return {name: _parse_entry(name, part) for name, part in _read_catalogue()["entries"].items()}


def _parse_entry(name: str, part: Mapping[str, Any]) -> PaperEntry:
    given = dict(part)
    ahead = tuple(StatedOrder(**one) for one in given.pop("ahead", ()))
    lists: dict[str, Any] = {key: tuple(given.pop(key, ())) for key in ("needs", "small", "medium", "also")}
    own = {scale: tuple(items) for scale, items in given.pop("overrides", {}).items()}
    return PaperEntry(name, **lists, ahead=ahead, overrides=own, **given)


@cache
def paper_details() -> Mapping[str, Mapping[str, Any]]:
    """feddm, ... -> title, ``printed`` settings, and ``deviations``: what differs from the paper at every scale."""
    files = sorted(PAPER_FOLDER.glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}


def scale_overrides(entry: PaperEntry, scale: str, row: str = "", column: Sequence[str] = ()) -> tuple[str, ...]:
    """The overrides of a scale: preset, the paper's own scale, those of one method or of a column's setting, and last the entry's own."""
    family = _read_catalogue()["scales"][scale]
    method = next((items for start, items in family.get("rows", {}).items() if starts_with_words(row, start)), ())
    where = (item for setting, items in family.get("where", {}).items() if setting in column for item in items)
    return (*family["all"], *family.get(entry.paper, ()), *method, *where, *entry.overrides.get(scale, ()))


def differences_at_scale(scale: str) -> Mapping[str, Mapping[str, str]]:
    """term -> start of a row -> why its rows are on unequal terms at this scale alone."""
    found: Mapping[str, Mapping[str, str]] = _read_catalogue()["scales"][scale].get("differs", {})
    return found


def starts_with_words(row: str, start: str) -> bool:
    """Whether a row begins with these whole words."""
    return row == start or row.startswith(f"{start} ")


def find_entry(name: str) -> PaperEntry:
    """Raises BadConfig, with the nearest name, for one that is not in the catalogue."""
    known = load_catalogue()
    if name in known:
        return known[name]
    raise BadConfig(f"{name}: no such entry; {_suggest_name(name, [*known, 'all', 'list', 'overview', 'privacy'])}")


def _suggest_name(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "python -m privdd.reproduce list shows all"

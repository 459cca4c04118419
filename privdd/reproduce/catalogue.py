"""The catalogue: every table and figure of the papers, what runs it, and where it cannot be run;
and the command line that picks from it.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from privdd.core.command import (
    Command,
    Key,
    parse_integer,
    parse_integer_list,
    read_path,
    read_word,
)
from privdd.core.validation import BadConfig
from privdd.runtime.yaml_files import read_shipped_yaml

CATALOGUE_FILE = Path(__file__).parent / "catalogue.yaml"
PAPER_FOLDER = Path(__file__).parent / "papers"
SCALES = ("small", "medium", "paper")
COMMANDS = ("list", "all", "overview", "privacy")  # names beside those of entries
RUNS_HERE = "rows"
SHOWN_ELSEWHERE = "elsewhere"
NOTHING_TO_RUN = "nothing to run"
OUT_OF_REACH = "out of reach"
ACCURACY = "accuracy"
SPEED = "speed"  # mean accuracy over all rounds
NAMES = """\
Trains all rows of a table or figure of a paper, and writes one page: the paper's numbers next to these, whether its order
holds, accuracy against rounds and bytes, and every setting that differs from the paper.

  list                  every table, figure and equation: which run here, which data they need, which are out of reach
  NAME                  feddm.table2, fedrd.table1, fedfed.figure11, fedlgd.table1, ...
  all                   every entry that runs with what comes with privdd
  overview              one page and one table about all entries that are finished in out=DIR; "all" ends with it
  privacy               the papers' sentences about privacy, each with the test that decides it"""
MOST_JOBS = 256
REPRODUCE = Command(
    "python -m privdd.reproduce list | NAME | all | overview | privacy [scale=small] "
    "[seeds=0-2] [jobs=1] [out=DIR] [device=cpu]",
    NAMES,
    (
        Key(
            "scale",
            read_word(*SCALES),
            "small",
            "at most 15 minutes an entry on two cores; medium: hours; paper: the papers' "
            "settings and data, for a GPU",
        ),
        Key(
            "seeds",
            parse_integer_list,
            "0-2",
            "0-2, or 0,5; differences are taken seed by seed (default: 0-2; five if the "
            "catalogue asks for them)",
        ),
        Key(
            "jobs",
            lambda key, text: parse_integer(key, text, 1, MOST_JOBS),
            "N",
            "rows side by side, in processes of their own",
        ),
        Key(
            "out",
            read_path,
            "DIR",
            "default outputs/reproduce; rows that are finished there are not trained again",
        ),
        Key("device", read_word("cpu", "cuda"), "cuda", "for all rows"),
    ),
    "Exit status: 0 done, whether or not the paper's order holds; 1 error.",
)


@dataclass(frozen=True)
class Sentence:
    """A sentence of a paper that puts rows of a column in order.

    says: what it says, and where; ahead: (better, worse) rows, one pair for each of the ``names``
    comparisons that the words make; best: in place of these, the rows of which the one that a
    column has is ahead of all its others, but for that row with further settings; over: of a
    sentence about gains, each compared row with the row that its gain is over; by: what is
    compared, ``ACCURACY`` or ``SPEED``."""

    says: str
    names: int = 0
    ahead: tuple[tuple[str, str], ...] = ()
    best: tuple[str, ...] = ()
    over: tuple[tuple[str, str], ...] = ()
    by: str = ACCURACY

    @property
    def bases(self) -> Mapping[str, str]:
        """Row -> the row that its gain is over; empty unless gains are compared."""
        return dict(self.over)

    def pairs_among(self, rows: Sequence[str]) -> list[tuple[str, str]]:
        """The comparisons in a column with these rows; [] if the sentence is not about it."""
        if self.best:
            leader = next((row for row in self.best if row in rows), None)
            if leader is None:
                return []
            return [(leader, row) for row in rows if not starts_with_words(row, leader)]
        if {*self.compared_rows(self.ahead)} <= {*rows}:
            return [*self.ahead]
        return []

    def compared_rows(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """The rows whose trainings decide these pairs."""
        named = [*dict.fromkeys(itertools.chain.from_iterable(pairs))]
        bases = [self.bases[row] for row in named if row in self.bases]
        return [*dict.fromkeys([*named, *bases])]


@dataclass(frozen=True)
class PaperEntry:
    """One table or figure.

    experiment: the file in configs/experiment whose rows it shows, "" where none are trained for
    it; kind: one of ``RUNS_HERE``, ``SHOWN_ELSEWHERE``, ``NOTHING_TO_RUN``, ``OUT_OF_REACH``; why:
    of the last three; needs: data sets of the paper that do not come with privdd; small, medium:
    the columns that this scale trains (empty: all); also: further tables and figures (``ANALYSES``
    of ``figures``); seeds: how many it has where none are asked for."""

    name: str
    shows: str
    experiment: str = ""
    kind: str = RUNS_HERE
    why: str = ""
    needs: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    medium: tuple[str, ...] = ()
    seeds: int = 3
    also: tuple[str, ...] = ()
    sentences: tuple[Sentence, ...] = ()
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
    catalogue: dict[str, Any] = read_shipped_yaml(CATALOGUE_FILE)
    return catalogue


@cache
def load_catalogue() -> Mapping[str, PaperEntry]:
    """name -> entry, in the papers' order."""
    return {name: _parse_entry(name, part) for name, part in _read_catalogue()["entries"].items()}


def _parse_entry(name: str, part: Mapping[str, Any]) -> PaperEntry:
    settings: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in part.items()
    }
    sentences = tuple(_parse_sentence(item) for item in settings.pop("sentences", ()))
    overrides = {scale: tuple(items) for scale, items in settings.pop("overrides", {}).items()}
    return PaperEntry(name, sentences=sentences, overrides=overrides, **settings)


def _parse_sentence(part: Mapping[str, Any]) -> Sentence:
    ahead = tuple((better, worse) for better, worse in part.get("ahead", ()))
    return Sentence(
        part["says"],
        part.get("names", 0),
        ahead,
        tuple(part.get("best", ())),
        tuple(part.get("over", {}).items()),
        part.get("by", ACCURACY),
    )


@cache
def paper_details() -> Mapping[str, Mapping[str, Any]]:
    """feddm, ... -> title, ``printed`` settings, ``deviations``: what differs from the paper at
    every scale, and ``equations``: where each is computed."""
    files = sorted(PAPER_FOLDER.glob("*.yaml"))
    return {file.stem: read_shipped_yaml(file) for file in files}


def scale_overrides(
    entry: PaperEntry, scale: str, row: str = "", column: Sequence[str] = ()
) -> tuple[str, ...]:
    """The overrides of a scale: preset, the paper's own scale, those of one method or of a column's
    setting, and last the entry's own."""
    family = _read_catalogue()["scales"][scale]
    method = next(
        (items for start, items in family.get("rows", {}).items() if starts_with_words(row, start)),
        (),
    )
    where = (
        item
        for setting, items in family.get("where", {}).items()
        if setting in column
        for item in items
    )
    return (
        *family["all"],
        *family.get(entry.paper, ()),
        *method,
        *where,
        *entry.overrides.get(scale, ()),
    )


def differences_at_scale(scale: str) -> Mapping[str, Mapping[str, str]]:
    """term -> start of a row -> why its rows are on unequal terms at this scale alone."""
    differences: Mapping[str, Mapping[str, str]] = _read_catalogue()["scales"][scale].get(
        "differs", {}
    )
    return differences


def starts_with_words(row: str, start: str) -> bool:
    """Whether a row begins with these whole words."""
    return row == start or row.startswith(f"{start} ")


def find_entry(name: str) -> PaperEntry:
    """Raises BadConfig, with the nearest name, for one that is not in the catalogue."""
    entries = load_catalogue()
    if name in entries:
        return entries[name]
    raise BadConfig(f"{name}: no such entry; {_suggest_name(name, [*entries, *COMMANDS])}")


def _suggest_name(word: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, names, 1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    return "python -m privdd.reproduce list shows all"


@dataclass(frozen=True)
class ReproduceArguments:
    """The parsed arguments. name: an entry, or list, all, overview or privacy; seeds: empty for the
    entry's own."""

    name: str
    scale: str = "small"
    seeds: tuple[int, ...] = ()
    jobs: int = 1
    out: Path = Path("outputs/reproduce")
    device: str = "cpu"

    @property
    def command(self) -> str:
        """The command that gives the same numbers."""
        if self.seeds:
            seeds = f" seeds={','.join(map(str, self.seeds))}"
        else:
            seeds = ""
        if self.device == "cpu":
            device = ""
        else:
            device = f" device={self.device}"
        return f"python -m privdd.reproduce {self.name} scale={self.scale}{seeds}{device}"


def parse_arguments(argv: Sequence[str]) -> ReproduceArguments:
    """Raises BadConfig, one line, for anything that is not understood."""
    names = [item for item in argv if "=" not in item]
    if len(names) != 1:
        raise BadConfig(
            f"{' '.join(names) or 'nothing'}: one name is needed: list, all, overview, "
            "privacy or an entry"
        )
    return ReproduceArguments(names[0], **REPRODUCE.parse([item for item in argv if "=" in item]))

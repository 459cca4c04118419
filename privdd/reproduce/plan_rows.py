"""Which trainings an entry asks for: a column of the table, one of its rows, one seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from privdd.cli.paper_rows import config_mark, paper_of, row_config
from privdd.cli.sweeps import fingerprint, readable
from privdd.core.errors import BadConfig
from privdd.reproduce.entries import PaperEntry, find, scale_overrides


@dataclass(frozen=True)
class PaperCell:
    """One number of a table. printed: the paper's accuracy in percent, None where it prints no number."""

    column: str
    row: str
    printed: float | None
    overrides: tuple[str, ...]

    def folder(self, seed: int) -> str:
        """The same for two cells that are the same training, so that it is done once; another where a setting that is
        not typed here has another value now, so that no row of earlier settings is shown as one of today's."""
        config = row_config(self.overrides, seed)
        return f"{readable(self.row)}-seed{seed}-{config_mark(config, config.capture)}"


def merged(*groups: Iterable[str]) -> tuple[str, ...]:
    """All overrides, the later value where a key is given twice (Hydra allows each once)."""
    last = {item.split("=", 1)[0]: item for group in groups for item in group}
    return tuple(last.values())


def columns(entry: PaperEntry, scale: str) -> tuple[str, ...]:
    """The columns that are trained: at scale=small those that the catalogue names."""
    known: dict[str, Any] = paper_of(entry.experiment)["columns"]
    chosen = entry.small if scale == "small" and entry.small else tuple(known)
    if wrong := [name for name in chosen if name not in known]:
        raise BadConfig(
            f"{entry.name}: experiment={entry.experiment} has no column {wrong[0]!r}; it has {', '.join(known)}"
        )
    return chosen


def cells(entry: PaperEntry, scale: str, more: Sequence[str] = ()) -> list[PaperCell]:
    """Every number of the entry at a scale. more: overrides for all of them (device=cuda).

    Small and medium take the stand-in data that the experiment names; scale=paper takes the paper's own.
    """
    paper = paper_of(entry.experiment)
    offline = () if scale == "paper" else paper["offline"]["overrides"]
    made = []
    for column in columns(entry, scale):
        part = paper["columns"][column]
        for row, printed in part["accuracy"].items():
            shared = ([f"experiment={entry.experiment}"], part["overrides"], offline)
            own = (scale_overrides(entry, scale, row, part["overrides"]), row.split(), more)
            made.append(PaperCell(column, row, printed, merged(*shared, *own)))
    return made


def paper_cell(entry: PaperEntry, cell: PaperCell) -> PaperCell:
    """The same number at the paper's own scale and data, against which a run is compared."""
    return next(one for one in cells(entry, "paper") if (one.column, one.row) == (cell.column, cell.row))


def on_device(device: str) -> tuple[str, ...]:
    """What all rows of an entry are given for it."""
    return () if device == "cpu" else (f"device={device}",)


@lru_cache(maxsize=256)
def settings_mark(name: str, scale: str, device: str) -> str:
    """Another one where any setting of any of the entry's rows has another value now."""
    return fingerprint(cell.folder(0) for cell in cells(find(name), scale, on_device(device)))

"""The command line of ``python -m privdd.reproduce``."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privdd.core.validation import BadConfig, parse_integer, parse_integer_list
from privdd.reproduce.catalogue import SCALES

USAGE = """usage: python -m privdd.reproduce list | NAME | all | overview | privacy [scale=small] [seeds=0-2] [jobs=1] [out=DIR] [device=cpu]

Trains all rows of a table or figure of a paper, and writes one page: the paper's numbers beside these, whether its order
holds, accuracy against rounds and bytes, and every setting that differs from the paper.

  list            every table and figure: what runs here, what needs which data, what is out of reach
  NAME            feddm.table2, fedrd.table1, fedfed.figure11, fedlgd.table1, ...
  all             every entry that runs with what comes with privdd
  overview        one page and one table about all entries that are finished in out=DIR; "all" ends with it
  privacy         the papers' sentences about privacy, each with the test that decides it
  scale=small     at most 15 minutes an entry on two cores; medium: hours; paper: the papers' settings and data, for a GPU
  seeds=0-2       0-2, or 0,5; differences are taken seed by seed
  jobs=N          rows side by side, in processes of their own
  out=DIR         default outputs/reproduce; rows that are finished there are not trained again
  device=cuda     for all rows

Exit status: 0 done, whether or not the paper's order holds; 1 error.
"""
MOST_JOBS = 256


@dataclass(frozen=True)
class ReproduceArguments:
    """The parsed arguments. name: an entry, or list, all, overview or privacy."""

    name: str
    scale: str = "small"
    seeds: tuple[int, ...] = (0, 1, 2)
    jobs: int = 1
    out: Path = Path("outputs/reproduce")
    device: str = "cpu"

    @property
    def command(self) -> str:
        """The command that gives the same numbers."""
        seeds = ",".join(map(str, self.seeds))
        device = "" if self.device == "cpu" else f" device={self.device}"
        return f"python -m privdd.reproduce {self.name} scale={self.scale} seeds={seeds}{device}"


def parse_arguments(argv: Sequence[str]) -> ReproduceArguments:
    """Raises BadConfig, one line, for anything that is not understood."""
    names = [item for item in argv if "=" not in item]
    if len(names) != 1:
        raise BadConfig(f"{' '.join(names) or 'nothing'}: one name is needed: list, all, overview, privacy or an entry")
    given: dict[str, str] = {}
    for item in argv:
        key, equals, value = item.partition("=")
        if equals:
            _check_key(key, value, given)
            given[key] = value
    seeds = parse_integer_list("seeds", given["seeds"]) if "seeds" in given else ReproduceArguments.seeds
    jobs = parse_integer("jobs", given.get("jobs", "1"), 1, MOST_JOBS)
    scale, device = given.get("scale", "small"), given.get("device", "cpu")
    _check_one_of("scale", scale, SCALES)
    _check_one_of("device", device, ("cpu", "cuda"))
    return ReproduceArguments(names[0], scale, seeds, jobs, Path(given.get("out", str(ReproduceArguments.out))), device)


def _check_key(key: str, value: str, given: dict[str, str]) -> None:
    known = ("scale", "seeds", "jobs", "out", "device")
    if key not in known:
        close = difflib.get_close_matches(key, known, 1)
        raise BadConfig(
            f"{key}: unknown; {f'did you mean {close[0]}?' if close else 'allowed are ' + ', '.join(known)}"
        )
    if key in given or not value:
        raise BadConfig(f"{key}={value}: once, with a value")


def _check_one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        close = difflib.get_close_matches(value, allowed, 1)
        raise BadConfig(
            f"{key}={value}: {f'did you mean {close[0]}? ' if close else ''}allowed are {', '.join(allowed)}"
        )

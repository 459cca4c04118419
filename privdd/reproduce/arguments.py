"""The command line of ``python -m privdd.reproduce``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privdd.core.arguments import Command, Key, read_path, read_word
from privdd.core.validation import BadConfig, parse_integer, parse_integer_list
from privdd.reproduce.catalogue import SCALES

NAMES = """\
Trains all rows of a table or figure of a paper, and writes one page: the paper's numbers beside these, whether its order
holds, accuracy against rounds and bytes, and every setting that differs from the paper.

  list                  every table and figure: what runs here, what needs which data, what is out of reach
  NAME                  feddm.table2, fedrd.table1, fedfed.figure11, fedlgd.table1, ...
  all                   every entry that runs with what comes with privdd
  overview              one page and one table about all entries that are finished in out=DIR; "all" ends with it
  privacy               the papers' sentences about privacy, each with the test that decides it"""
MOST_JOBS = 256
REPRODUCE = Command(
    "python -m privdd.reproduce list | NAME | all | overview | privacy [scale=small] [seeds=0-2] [jobs=1] [out=DIR] [device=cpu]",
    NAMES,
    (
        Key("scale", read_word(*SCALES), "small", "at most 15 minutes an entry on two cores; medium: hours; paper: the papers' settings and data, for a GPU"),
        Key("seeds", parse_integer_list, "0-2", "0-2, or 0,5; differences are taken seed by seed (default: 0-2; five where the catalogue says so)"),
        Key("jobs", lambda key, text: parse_integer(key, text, 1, MOST_JOBS), "N", "rows side by side, in processes of their own"),
        Key("out", read_path, "DIR", "default outputs/reproduce; rows that are finished there are not trained again"),
        Key("device", read_word("cpu", "cuda"), "cuda", "for all rows"),
    ),
    "Exit status: 0 done, whether or not the paper's order holds; 1 error.",
)  # fmt: skip


@dataclass(frozen=True)
class ReproduceArguments:
    """The parsed arguments. name: an entry, or list, all, overview or privacy; seeds: empty for the entry's own."""

    name: str
    scale: str = "small"
    seeds: tuple[int, ...] = ()
    jobs: int = 1
    out: Path = Path("outputs/reproduce")
    device: str = "cpu"

    @property
    def command(self) -> str:
        """The command that gives the same numbers."""
        seeds = f" seeds={','.join(map(str, self.seeds))}" if self.seeds else ""
        device = "" if self.device == "cpu" else f" device={self.device}"
        return f"python -m privdd.reproduce {self.name} scale={self.scale}{seeds}{device}"


def parse_arguments(argv: Sequence[str]) -> ReproduceArguments:
    """Raises BadConfig, one line, for anything that is not understood."""
    names = [item for item in argv if "=" not in item]
    if len(names) != 1:
        raise BadConfig(f"{' '.join(names) or 'nothing'}: one name is needed: list, all, overview, privacy or an entry")
    return ReproduceArguments(names[0], **REPRODUCE.parse([item for item in argv if "=" in item]))

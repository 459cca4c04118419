"""Does each membership attack find a leak that is there, and none where there is none, on every
surface that it claims?

    python -m tests.power.membership [--seeds 3] [--write docs/power.md]

``tests.power.planted_leaks`` makes uploads that hold a client's members, read as an audit reads
them. An attack finds a leak where the 95 % interval of its AUC lies above 0.5; in a null the
members are those of other coins. The exit status is 1 where an attack finds less than nine of ten
planted leaks, or more nulls than chance explains."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from scipy.stats import binom

from attacks.membership.attack import MembershipAttack
from attacks.membership.nearest_row import NearestRow
from attacks.membership.soft_labels import SoftLabels
from attacks.types import Adversary, Surface, Truth, View
from privdd.cli.build import build_attacks
from privdd.cli.compose import compose_config, config_dir
from privdd.reporting.export import write_markdown_page
from tests.power.planted_leaks import (
    CLASSES,
    NOISE,
    OTHER_CLIENTS,
    PULL,
    RECORDS,
    SHAPE,
    WORLDS,
    planted,
)

LEVEL = 0.025  # of one side of a 95 % interval
NOBODY = Truth(
    *[torch.zeros(1, *SHAPE), torch.zeros(1, dtype=torch.long)] * 2, torch.zeros(CLASSES)
)


def blind_or_wrong(found: int, nulls: int, seeds: int) -> bool:
    """Fewer than nine of ten planted leaks found, or more nulls than chance explains (p <
    0.001)."""
    return found < 0.9 * seeds or float(binom.sf(nulls - 1, seeds, LEVEL)) < 1e-3


@dataclass(frozen=True)
class Power:
    """Of ``seeds`` planted leaks and as many nulls: how many were found, in how many there was
    nothing to read."""

    surface: Surface
    attack: str
    found: int
    nulls: int
    unread: int
    seeds: int

    @property
    def broken(self) -> bool:
        """Blind to the leak, or crying wolf (p < 0.001). Where nothing could be read, in every null
        as well."""
        if self.unread:
            return self.unread != 2 * self.seeds or self.surface != Surface.COUNTS
        return blind_or_wrong(self.found, self.nulls, self.seeds)

    def __str__(self) -> str:
        return (
            "nothing to read"
            if self.unread
            else f"{self.found}/{self.seeds}, {self.nulls}/{self.seeds}"
        )


@lru_cache
def attacks() -> Mapping[str, MembershipAttack]:
    """Every membership attack on what is sent, those that are off by default too, with its shipped
    settings."""
    names = sorted(path.stem for path in (Path(config_dir()) / "attack").glob("[!_]*.yaml"))
    config = compose_config("audit", [f"attack=[{','.join(names)}]"])
    found = {
        name: attack
        for name, attack in build_attacks(config).items()
        if isinstance(attack, MembershipAttack)
    }
    return {
        name: attack
        for name, attack in found.items()
        if Adversary.ANALYST not in attack.adversaries
    }


def claimed() -> Iterator[tuple[Surface, str]]:
    """Every surface with every attack that claims it."""
    return (
        (surface, name)
        for surface in Surface
        for name, attack in attacks().items()
        if surface in attack.surfaces
    )


@lru_cache(maxsize=256)
def _view(surface: Surface, seed: int, null: bool, leak: str, crowd: bool) -> View:
    return planted(surface, seed, null=null, leak=leak, crowd=crowd)


def _planted_leak(attack: MembershipAttack) -> str:
    """The kind of leak that an attack searches for."""
    if isinstance(attack, NearestRow):
        return "copies"
    if isinstance(attack, SoftLabels):
        return "soft"
    return "usual"


def finds(
    attack: MembershipAttack, surface: Surface, seed: int, *, null: bool = False
) -> bool | None:
    """Whether the attack's AUC is above one half at 95 %; None where it says that there is nothing
    to read."""
    view = _view(surface, seed, null, _planted_leak(attack), attack.reads_other_clients)
    if attack.nothing_to_read(view):
        return None
    finding = attack.judge(attack.run(view, torch.Generator().manual_seed(seed)), view, NOBODY)
    return None if finding.measures.auc_ci is None else finding.measures.auc_ci[0] > 0.5


def power(surface: Surface, name: str, seeds: Sequence[int]) -> Power:
    attack = attacks()[name]
    leaks, nulls = (
        [finds(attack, surface, seed, null=null) for seed in seeds] for null in (False, True)
    )
    return Power(
        surface,
        name,
        leaks.count(True),
        nulls.count(True),
        [*leaks, *nulls].count(None),
        len(seeds),
    )


def markdown(rows: Sequence[Power], seconds: float) -> str:
    names = list(dict.fromkeys(row.attack for row in rows))
    cell = {(row.surface, row.attack): str(row) for row in rows}
    lines = [f"| surface | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for surface in dict.fromkeys(row.surface for row in rows):
        lines.append(
            f"| {surface} | {' | '.join(cell.get((surface, name), '-') for name in names)} |"
        )
    seeds = rows[0].seeds
    return f"""# Would the attacks have seen it?

An attack that finds nothing says something only if it finds a leak that is there. For each
surface an upload is made of a client's members and of Gaussian noise, read by the same code as in
an audit, and given to every membership attack that claims the surface, those that are off by
default too, with its shipped settings: {RECORDS} records, {WORLDS} replays. Each member moves
models and gradients by {PULL:g} standard deviations of the noise along its own gradient; images,
features and representations are the members' own with noise of standard deviation {NOISE:g},
which is the records' own spread; labels and prototypes count the members of ten classes; logits
are those of a last layer after a step on the members, with noise of their own size. For
`nearest_row` and `nearest_patch`, which search for records sent unchanged, one member in
three is (of prototypes, the mean of each class is one member), and the rest of the message is
noise. `fedmia` and `source_inference` get the messages of {OTHER_CLIENTS} other clients of as
many records of their own. `soft_labels` gets random images with the soft labels of a linear
teacher after a step on the members, whose logits have noise of their own size. A leak counts as
found if the 95 % interval of the AUC lies above one half. In a null the same is sent of records
that other coins chose; 2.5 % of nulls may be found.

    python -m tests.power.membership --seeds {seeds} --write docs/power.md

Found of {seeds} planted leaks, and of {seeds} nulls; {seconds:.0f} CPU s. "-": the attack does
not claim the surface. The number of records that a client holds is one number for all of its
records, in which no membership attack has anything to read. `noised_reads` reads no surface but
the noised sums behind one: its leaks are planted in
`tests/attacks/membership/test_noised_sums.py`.

{chr(10).join(lines)}
"""


Row = TypeVar("Row", bound="Judged")


class Judged(Protocol):
    """What was found of one attack on one surface, and whether that is wrong."""

    @property
    def broken(self) -> bool: ...


def command(
    name: str,
    doc: str | None,
    measured: Callable[[range], list[Row]],
    markdown: Callable[[Sequence[Row], float], str],
    arguments: Sequence[str] | None,
) -> int:
    """Print the table of ``measured(seeds)``, or write it to a file; 1 where an attack is blind or
    cries wolf, else 0."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.power.{name}", description=doc)
    parser.add_argument(
        "--seeds", type=int, default=3, help="planted leaks, and nulls, for each attack and surface"
    )
    parser.add_argument("--write", type=Path, help="the file that the table is written to")
    options = parser.parse_args(arguments)
    began = time.process_time()
    rows = measured(range(options.seeds))
    table = markdown(rows, time.process_time() - began)
    if options.write:
        write_markdown_page(options.write, table)
    else:
        print(table)
    wrong = [row for row in rows if row.broken]
    for row in wrong:
        print(row, file=sys.stderr)
    return int(bool(wrong))


def main(arguments: Sequence[str] | None = None) -> int:
    return command(
        "membership",
        __doc__,
        lambda seeds: [power(*one, seeds) for one in claimed()],
        markdown,
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())

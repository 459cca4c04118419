"""Do membership attacks stay at one half where there is nothing to find? Real signals of a run,
with coins dealt again.

    python -m privdd.audit algo=fedavg hydra.run.dir=RUN
    python -m tests.power.nulls RUN [RUN ...] [--draws 100] [--attacks fusion,lira]

What a run's replays released is read from the copies that it keeps, so nothing is trained. The
coins of the masks are then
drawn anew, for all replays: they have nothing to do with what was released, and an attack that
finds members has found its own reflection. In each draw the 95 % interval of the AUC should
hold one half; counted is in how many it does, and how often
the one-run bound on epsilon, which at 95 % may be above zero in one of twenty, is. The exit status
is 1 where fewer draws hold one half than 95 % coverage explains (p < 0.001).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from scipy.stats import binom
from torch import Tensor

from attacks.membership.attack import MembershipAttack
from attacks.types import Surface, Truth, View
from privdd.auditing.pipeline import audit_experiment
from privdd.cli.build import build_experiment
from privdd.cli.stored_config import load_stored_config
from privdd.runtime.run_folder import RunFolder
from tests.power.membership import attacks

LEVEL = 0.95
LEAST = 12  # replays: with fewer, few records have a shadow model on both sides
NOBODY = Truth(*[torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.long)] * 2, torch.zeros(10))


@dataclass(frozen=True)
class Keeper(MembershipAttack):
    """No attack: it keeps the views that an audit shows it."""

    views: list[View] = field(default_factory=list)
    name: ClassVar[str] = "keeper"

    def nothing_to_read(self, view: View) -> str:
        self.views.append(view)
        return "kept for a null"

    def score(self, view: View, name: str, seed: int) -> Tensor:
        raise NotImplementedError


def views_of(run: Path) -> list[View]:
    """All membership views of a finished run, from its kept replays. The run's folder is left as it
    is."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "run"
        shutil.copytree(run, copy)
        keeper = Keeper()
        audit_experiment(
            build_experiment(load_stored_config(copy)), {"keeper": keeper}, RunFolder(copy)
        )
    return [
        view for view in keeper.views if view.worlds is not None and len(view.worlds.masks) >= LEAST
    ]


@dataclass(frozen=True)
class Null:
    """Of ``draws`` with fresh coins: in how many the interval held one half, and the bound on
    epsilon was above 0."""

    run: str
    surface: Surface
    attack: str
    held: int
    above: int
    draws: int
    mean: float

    @property
    def broken(self) -> bool:
        return bool(binom.cdf(self.held, self.draws, LEVEL) < 1e-3)


def with_fresh_coins(view: View, seed: int) -> View:
    """The same signals, and masks that say nothing about them."""
    worlds = view.worlds
    assert worlds is not None
    coins = torch.rand(worlds.masks.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    return replace(view, worlds=replace(worlds, masks=coins))


def null(run: str, view: View, name: str, attack: MembershipAttack, draws: int) -> Null | None:
    """None where the attack says that there is nothing to read."""
    held = 0
    above = 0
    total = 0.0
    if view.surface not in attack.surfaces or attack.nothing_to_read(view):
        return None
    for seed in range(draws):
        fresh = with_fresh_coins(view, seed)
        m: Mapping = attack.judge(
            attack.run(fresh, torch.Generator().manual_seed(seed)), fresh, NOBODY
        ).measures.to_row()
        held += m["auc_ci"][0] <= 0.5 <= m["auc_ci"][1]
        above += m["epsilon_shown"] > 0
        total += m["auc"]
    return Null(run, view.surface, name, held, above, draws, total / draws)


def rows(run: Path, chosen: Mapping[str, MembershipAttack], draws: int) -> Iterator[Null]:
    for view in views_of(run):
        for name, attack in chosen.items():
            found = null(run.name, view, name, attack, draws)
            if found is not None:
                yield found


def markdown(found: Sequence[Null], seconds: float) -> str:
    lines = [
        "| run | surface | attack | interval holds 0.5 | bound on epsilon above 0 | mean AUC |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {n.run} | {n.surface} | {n.attack} | {n.held}/{n.draws} | {n.above}/{n.draws} "
        f"| {n.mean:.3f} |"
        for n in found
    ]
    return "\n".join([*lines, "", f"{seconds:.0f} CPU s."])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row an attack and surface; 1 where an attack's intervals are too narrow, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.power.nulls", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished audits")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--attacks", help="some of them, with commas between")
    options = parser.parse_args(arguments)
    names = options.attacks.split(",") if options.attacks else list(attacks())
    chosen = {name: attacks()[name] for name in names}
    began = time.process_time()
    found = []
    for run in options.runs:
        for row in rows(run, chosen, options.draws):
            found.append(row)
            print(
                f"{row.run} {row.surface} {row.attack}: {row.held}/{row.draws}, mean AUC "
                f"{row.mean:.3f}",
                file=sys.stderr,
                flush=True,
            )
    print(markdown(found, time.process_time() - began))
    return int(any(row.broken for row in found))


if __name__ == "__main__":
    sys.exit(main())

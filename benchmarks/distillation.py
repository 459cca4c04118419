"""What distillation does, as one table: every distilling profile on digits, and rows of the papers'
tables at scale=small.

    python -m benchmarks.distillation [--write docs/data/reproduction-distillation.csv]

One client, one seed, its first distillation (FedFed: after its phase A); no training of the global
model, and no attack."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from attacks.command_line import CommandParser
from privdd.cli.build import build_experiment
from privdd.cli.main import config_of
from privdd.cli.paper_rows import build_row_experiment
from privdd.distillation.diagnostics import DistillationDiagnostics, diagnose_first_round
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import run_round, start_training
from privdd.reproduce.catalogue import find_entry
from privdd.reproduce.figures import row_label
from privdd.reproduce.train import describe_steps, paper_cells
from privdd.runtime.engine import Engine
from privdd.runtime.files import write_bytes

# all whose distillation can be measured; fedfed_dp, fedfed_released and fedfed_flbench match no
# images, and no bound is measured in them
PROFILES = (
    "feddm",
    "fedrd",
    "fedlgd",
    "fedlgd_released",
    "virtual_data",
    "fedfed",
    "fedfed_virtual",
    "feddm_dp",
    "feddm_public_dp",
    "dp_merf",
    "fedrd_dp",
    "fedrd_printed",
    "fedrd_personal_dp",
    "fedlgd_dp",
)
PRESETS = ("smoke", "default")
# columns at scale=small whose rows distil
COLUMNS = (
    ("feddm.table2", "MNIST, alpha 0.1"),
    ("feddm.table2", "MNIST, alpha 0.01"),
    ("feddm.figure3", "sigma 1"),
    ("feddm.table3", "alpha 0.5"),
    ("feddm.figure4", "alpha 0.5"),
    ("feddm.figure5", "alpha 0.5"),
    ("feddm.table4", "alpha 0.5"),
    ("fedrd.table2", "epsilon 10"),
    ("fedrd.table3", "F-MNIST"),
    ("fedfed.table2", "alpha 0.05, E 1, K 10"),
    ("fedlgd.table1", "ConvNet, 10 images a class"),
    ("fedlgd.table7", "50 images a class"),
)
HEADER = (
    "profile or row",
    "at",
    "steps",
    "rate in units of the variance",
    "moved, %",
    "loss before",
    "loss after",
    "change, %",
    "at rho, %",
)
MISSING = ""


@dataclass(frozen=True)
class MeasuredRow:
    """A profile or a row of a table, and what its distillation does."""

    name: str
    place: str
    steps: str
    found: DistillationDiagnostics

    def cells(self) -> tuple[str, ...]:
        d = self.found
        change = (
            f"{100 * (d.loss_after / d.loss_before - 1):+.0f}"
            if d.loss_before and d.loss_after is not None
            else MISSING
        )
        numbers = (d.rate, _percent(d.moved), d.loss_before, d.loss_after)
        shown = (MISSING if value is None else f"{value:.3g}" for value in numbers)
        at_bound = MISSING if d.at_bound is None else f"{100 * d.at_bound:.0f}"
        return self.name, self.place, self.steps, *shown, change, at_bound


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def measure_experiment(experiment: Experiment) -> DistillationDiagnostics | None:
    """The first distillation of the audited client; None if its method distils nothing."""
    plan = experiment.plan
    shard = experiment.shards[plan.victim]
    found = diagnose_first_round(plan, shard)
    if found is not None:
        return found
    share = _share_at_bound(experiment)
    return None if share is None else DistillationDiagnostics(plan.victim, 0, at_bound=share)


def _share_at_bound(experiment: Experiment) -> float | None:
    """Of the features under the first generator that is sent for release."""
    plan = experiment.plan
    hooks = plan.method.audit_hooks
    rounds = getattr(plan.method, "distill_rounds", 0)
    progress = start_training(plan, experiment.new_ledger())
    for _ in range(rounds):
        progress = run_round(plan, progress, experiment.shards, Engine(threads=1))[0]
    if not rounds:
        return None
    broadcast = plan.method.broadcast(progress.server)
    memory = progress.memories.get(plan.victim, {})
    x = experiment.shards[plan.victim].train.x
    return hooks.share_at_bound(broadcast, memory, x, plan.problem)


def measure_profiles() -> Iterator[MeasuredRow]:
    for preset in PRESETS:
        for profile in PROFILES:
            typed = (f"algo={profile}", f"preset={preset}", "data=digits")
            found = measure_experiment(build_experiment(config_of("train", *typed)))
            if found is not None:
                yield MeasuredRow(profile, f"preset={preset}", describe_steps([typed]), found)


def measure_columns() -> Iterator[MeasuredRow]:
    for name, column in COLUMNS:
        for cell in paper_cells(find_entry(name), "small"):
            if cell.column == column:
                found = measure_experiment(build_row_experiment(cell.overrides, 0))
                if found is not None:
                    steps = describe_steps([cell.overrides])
                    yield MeasuredRow(row_label(cell.row), f"{name}, {column}", steps, found)


def write_table(file: Path, rows: Sequence[MeasuredRow]) -> None:
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(HEADER)
    table.writerows(row.cells() for row in rows)
    write_bytes(file, buffer.getvalue().encode())


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path("docs/data/reproduction-distillation.csv")
    parser.add_argument("--write", type=Path, default=default, metavar="FILE")
    given = parser.parse_args(argv)
    rows = []
    for row in chain(measure_profiles(), measure_columns()):
        print(", ".join(row.cells()), flush=True)
        rows.append(row)
        write_table(given.write, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

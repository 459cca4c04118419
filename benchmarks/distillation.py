"""What distillation does, as one table: every distilling profile on digits, and rows of the papers'
tables at scale=small.

    python -m benchmarks.distillation [--write docs/data/reproduction-distillation.csv]
    [--only feddm fedrd.table3 ...]

One client, one seed, its first distillation; no training of the global model, and no attack.
FedFed's after its phase A. Guided images are one data set of all clients, made after the last
round: it is compared with the drawings that it was made from, and with all clients' records."""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from attacks.command_line import CommandParser
from privdd.cli.build import build_experiment
from privdd.cli.main import config_of
from privdd.cli.paper_rows import build_row_experiment, flat_settings_of
from privdd.core.types import Records
from privdd.distillation.class_cells import draw_public_start
from privdd.distillation.diagnostics import (
    DistillationDiagnostics,
    compare_rows,
    diagnose_first_round,
    relative_rate,
    share_at_bound,
)
from privdd.federated.audit_hooks import LabelledRows
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Plan, Progress, run_round, start_training
from privdd.methods.dp_psg import DPPSG
from privdd.methods.feddm_guided import FedDMGuided
from privdd.methods.fedfed import FedFed
from privdd.reproduce.catalogue import find_entry
from privdd.reproduce.figures import row_label
from privdd.reproduce.train import describe_steps, paper_cells
from privdd.runtime.engine import Engine
from privdd.runtime.files import write_bytes

# all that distil; fedfed_raw shares the records' images themselves
PROFILES = (
    "feddm",
    "fedrd",
    "fedlgd",
    "fedlgd_released",
    "virtual_data",
    "fedfed",
    "fedfed_virtual",
    "fedfed_released",
    "fedfed_flbench",
    "feddm_dp",
    "feddm_public_dp",
    "dp_merf",
    "feddm_guided_dp",
    "feddm_guided_scattering",
    "dp_psg",
    "fedrd_dp",
    "fedrd_printed",
    "fedrd_personal_dp",
    "fedlgd_dp",
    "fedfed_dp",
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
    "at the bound, %",
)
MISSING = ""
NO_BOUND = "no bound"
HARDLY = 1e-12  # of a pixel: a step that leaves images as they were
KEPT = ("profile or row", "at")  # what a line is of


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
        if d.moved is None and d.at_bound is None:
            at_bound = NO_BOUND
        return self.name, self.place, self.steps, *shown, change, at_bound


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def measure_experiment(experiment: Experiment) -> DistillationDiagnostics | None:
    """The first distillation of the audited client; None if its method distils nothing."""
    plan = experiment.plan
    if isinstance(plan.method, DPPSG):
        return _measure_generated_set(experiment, plan.method)
    if isinstance(plan.method, FedDMGuided):
        return _measure_guided_set(experiment, plan.method)
    found = diagnose_first_round(plan, experiment.shards[plan.victim])
    if found is None and isinstance(plan.method, FedFed) and plan.method.distill_rounds:
        return DistillationDiagnostics(plan.victim, 0, at_bound=_share_at_bound(experiment))
    return found


def _measure_generated_set(experiment: Experiment, method: DPPSG) -> DistillationDiagnostics:
    """Images that follow the gradients of one client's records."""
    plan = experiment.plan
    shard = experiment.shards[plan.victim]
    ctx = plan.client_context(0, plan.victim)
    broadcast = method.broadcast(method.init(plan.problem, plan.keys))
    upload = method.local(broadcast, {}, shard.client_data, ctx)[0]
    y = upload["labels"].value["y"]
    drawn = draw_public_start(
        method.start, y.unique(), method.ipc, shard.shape, ctx.keys.fold("start")
    )
    start = drawn.flatten(0, 1)
    end = (upload["images"].value["x"], y)
    found = compare_rows(plan, 0, (start, y), end, shard.train, method.model)
    return replace(found, rate=relative_rate(method.generation.lr, start))


def _measure_guided_set(experiment: Experiment, method: FedDMGuided) -> DistillationDiagnostics:
    """The last round is played twice: as it is, and by a method that leaves its drawings as they
    are, which it then mixes and moves alike."""
    plan = experiment.plan
    progress = _play_rounds(experiment, plan, method.rounds - 1)
    fitting = replace(method.guiding.fitting, steps=1, lr=HARDLY)
    still = replace(method, guiding=replace(method.guiding, steps=0, fitting=fitting))
    start = _published_images(experiment, replace(plan, method=still), progress)
    end = _published_images(experiment, plan, progress)
    records = Records.concat([shard.train for shard in experiment.shards])
    return compare_rows(plan, method.rounds - 1, start, end, records, method.model)


def _play_rounds(experiment: Experiment, plan: Plan, rounds: int) -> Progress:
    progress = start_training(plan, experiment.new_ledger())
    for _ in range(rounds):
        progress = run_round(plan, progress, experiment.shards, Engine(threads=1))[0]
    return progress


def _published_images(experiment: Experiment, plan: Plan, progress: Progress) -> LabelledRows:
    after = run_round(plan, progress, experiment.shards, Engine(threads=1))[0]
    sent = plan.method.broadcast(after.server)
    return sent["images"]["x"], sent["labels"]["y"]


def _share_at_bound(experiment: Experiment) -> float | None:
    """Of the features under the first generator that is sent for release: at rho ||x|| of their
    record x, or, if they are clipped, at the clip norm; None if nothing bounds them."""
    plan = experiment.plan
    hooks = plan.method.audit_hooks
    progress = _play_rounds(experiment, plan, plan.method.distill_rounds)
    broadcast = plan.method.broadcast(progress.server)
    memory = progress.memories.get(plan.victim, {})
    x = experiment.shards[plan.victim].train.x
    share = hooks.share_at_bound(broadcast, memory, x, plan.problem)
    limit = plan.mechanisms["features"].norm_for_size(math.prod(plan.problem.shape))
    if share is not None or limit is None:
        return share
    with torch.no_grad():
        features = hooks.maps(broadcast, memory, plan.problem)["feature"](x)
    return share_at_bound(features.flatten(1).norm(dim=1), torch.full((len(x),), limit))


def describe_profile_steps(typed: tuple[str, ...]) -> str:
    """As ``describe_steps``, and of methods that match no means of embeddings."""
    settings: dict[str, Any] = flat_settings_of(typed)
    if "algo.generation.networks" in settings:
        counts = [settings[f"algo.generation.{key}"] for key in ("networks", "turns", "reads")]
        return f"T = {math.prod(counts)} x {settings['algo.generation.steps']}"
    if "algo.guiding.steps" in settings:
        fitted = settings["algo.guiding.fitting.steps"] if settings["algo.guiding.fitted"] else 0
        return f"T = {fitted}, {settings['algo.guiding.steps']}"
    return describe_steps([typed])


def measure_profiles(only: Sequence[str]) -> Iterator[MeasuredRow]:
    for preset in PRESETS:
        for profile in PROFILES:
            if only and profile not in only:
                continue
            typed = (f"algo={profile}", f"preset={preset}", "data=digits")
            found = measure_experiment(build_experiment(config_of("train", *typed)))
            if found is not None:
                steps = describe_profile_steps(typed)
                yield MeasuredRow(profile, f"preset={preset}", steps, found)


def measure_columns(only: Sequence[str]) -> Iterator[MeasuredRow]:
    for name, column in COLUMNS:
        if only and name not in only:
            continue
        for cell in paper_cells(find_entry(name), "small"):
            if cell.column == column:
                found = measure_experiment(build_row_experiment(cell.overrides, 0))
                if found is not None:
                    steps = describe_steps([cell.overrides])
                    yield MeasuredRow(row_label(cell.row), f"{name}, {column}", steps, found)


def read_table(file: Path) -> list[list[str]]:
    """The lines of a table of before, without its header."""
    if not file.is_file():
        return []
    return [*csv.reader(io.StringIO(file.read_text(encoding="utf-8")))][1:]


def merge_table(stored: Sequence[Sequence[str]], new: Sequence[Sequence[str]]) -> list[list[str]]:
    """The stored lines, but for those that were measured again; in the order of a whole run."""
    again = {tuple(line[: len(KEPT)]) for line in new}
    lines = [[*line] for line in stored if tuple(line[: len(KEPT)]) not in again]
    return sorted([*lines, *([*line] for line in new)], key=_position)


def _position(line: Sequence[str]) -> tuple[int, int]:
    """Profiles by preset, then columns; the rows of a column stay as they are."""
    name, place = line[: len(KEPT)]
    presets = [f"preset={preset}" for preset in PRESETS]
    if place in presets:
        return presets.index(place), PROFILES.index(name)
    return len(presets), [f"{entry}, {column}" for entry, column in COLUMNS].index(place)


def write_table(file: Path, lines: Sequence[Sequence[str]]) -> None:
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(HEADER)
    table.writerows(lines)
    write_bytes(file, buffer.getvalue().encode())


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path("docs/data/reproduction-distillation.csv")
    names = [*PROFILES, *dict.fromkeys(entry for entry, _ in COLUMNS)]
    parser.add_argument("--write", type=Path, default=default, metavar="FILE")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=names,
        metavar="NAME",
        help="profiles and entries; the other lines of FILE stay",
    )
    given = parser.parse_args(argv)
    stored = read_table(given.write) if given.only else []
    lines: list[tuple[str, ...]] = []
    for row in chain(measure_profiles(given.only), measure_columns(given.only)):
        print(", ".join(row.cells()), flush=True)
        lines.append(row.cells())
        write_table(given.write, merge_table(stored, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Accuracy of an experiment of configs/experiment beside the paper's, at a chosen CPU budget.

    python -m benchmarks.accuracy [key=value ...] --experiment feddm_table2 [--column "MNIST, alpha
    0.01"]
                                  [--row algo=feddm ...] [--seconds 40] [--seeds 0 1 2]
    python -m benchmarks.accuracy [key=value ...] --claim alpha [--seconds 40] [--seeds 0 1 2]
    python -m benchmarks.accuracy            small: the claim with one seed and 8 CPU s a run

A run stops at its configured rounds or at the first round that passes the budget (process CPU time
of training alone, one thread; evaluation is not counted). ``key=value`` pairs are overrides for
every run: preset=paper with a large budget is the paper's own setting.

--claim alpha: FedDM's main claim, on Fashion-MNIST at Dirichlet 0.01: FedDM from real images
against FedAvg at equal rounds and at equal CPU time, beside two controls: FedDM from noise, and
REAL, the same real images sent as they are (no matching step).
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from omegaconf import OmegaConf

from attacks.command_line import CommandParser
from benchmarks.machine import hardware
from privdd.cli.build import build_experiment
from privdd.cli.overrides import check_overrides
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Progress, run_round, start_training
from privdd.federated.trainer import measure_accuracy, predict_in_batches

# Few steps and many rounds: what a small CPU budget favours.
SMALL = (
    "preset=smoke",
    "partition.clients=10",
    "model.width=32",
    "data.limit=10000",
    "data.test_limit=2000",
)
CLAIM = (
    "experiment=feddm_table2",
    "data=fashion_mnist",
    "partition.alpha=0.01",
    *SMALL,
    "algo.rounds=1000",
)
FEDAVG = ("algo=fedavg", "algo.batch_size=64", "algo.momentum=0", "algo.lr=0.05")
VARIANTS = {
    "FedDM, real start": ("algo=feddm", "algo.matching.iterations=10"),
    "REAL (no matching)": ("algo=feddm", "algo.matching.iterations=0"),
    "FedDM, noise start": (
        "algo=feddm",
        "algo.start=noise",
        "algo.carry_over=true",
        "algo.matching.lr=10",
    ),
    "FedAvg, 1 epoch": (*FEDAVG, "algo.local_epochs=1"),
    "FedAvg, 1/4 epoch": (*FEDAVG, "algo.local_epochs=0.25"),
}


@dataclass(frozen=True)
class Curve:
    """Accuracy after each round and the CPU seconds spent by then."""

    accuracy: tuple[float, ...]
    seconds: tuple[float, ...]

    def at_rounds(self, rounds: int) -> float:
        """Accuracy after so many rounds; NaN where the run was shorter."""
        return self.accuracy[rounds - 1] if rounds <= len(self.accuracy) else math.nan

    def at_seconds(self, seconds: float) -> float:
        """Accuracy after the last round that ended within the budget; the first round's where none
        did."""
        within = [a for a, s in zip(self.accuracy, self.seconds) if s <= seconds]
        return within[-1] if within else self.accuracy[0]


def local_accuracy(experiment: Experiment, progress: Progress) -> float:
    """Mean over clients of accuracy on their own test records, personal or not."""
    method = experiment.plan.method
    values = []
    for k, shard in enumerate(experiment.shards):
        if len(shard.test):
            memory = progress.memories.get(k)
            logits = predict_in_batches(
                lambda x, m=memory: method.predict(progress.server, m, x), shard.test.x
            )  # type: ignore[misc]
            values.append(float((logits.argmax(1) == shard.test.y).float().mean()))
    return statistics.fmean(values)


def run(
    overrides: Sequence[str], seconds: float, *, rounds: int = 1
) -> tuple[Curve, Experiment, Progress]:
    """Train until the configured rounds are done, or the budget and at least ``rounds`` rounds."""
    config = check_overrides("train", overrides)
    local = OmegaConf.select(config, "paper.metric") == "local"
    experiment = build_experiment(config)
    plan = experiment.plan
    spent = 0.0
    seen = None
    progress = start_training(plan, experiment.new_ledger())
    values = []
    times = []
    while progress.round < plan.method.rounds and (spent < seconds or progress.round < rounds):
        began = time.process_time()
        progress, _, seen = run_round(plan, progress, experiment.shards, experiment.engine, seen)
        spent += time.process_time() - began
        values.append(
            local_accuracy(experiment, progress)
            if local
            else measure_accuracy(plan, progress, experiment.test_records, experiment.shards)
        )
        times.append(spent)
    return Curve(tuple(values), tuple(times)), experiment, progress


def shown(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds, in percent."""
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{100 * statistics.fmean(values):6.2f} ± {100 * spread:5.2f}"


def claim_alpha(seeds: Sequence[int], seconds: float, more: Sequence[str]) -> None:
    curves: dict[str, list[Curve]] = {name: [] for name in VARIANTS}
    for seed in seeds:
        rounds = 1
        for name, overrides in VARIANTS.items():
            # FedDM's rounds within the budget are what the others are compared at.
            curve = run((*CLAIM, *overrides, *more, f"seed={seed}"), seconds, rounds=rounds)[0]
            rounds = rounds if rounds > 1 else len(curve.accuracy)
            curves[name].append(curve)
            print(
                f"seed {seed}, {name}: {len(curve.accuracy)} rounds, "
                f"{curve.seconds[-1]:.0f} CPU s, "
                f"{100 * curve.at_seconds(seconds):.2f} %",
                flush=True,
            )
    rounds = min(len(c.accuracy) for c in curves["FedDM, real start"])
    print(
        f"\n{'':<20} {f'after {rounds} rounds':>18} {f'after {seconds:g} CPU s':>18} "
        f"{'rounds in that time':>20}"
    )
    for name, runs in curves.items():
        within = "/".join(str(sum(s <= seconds for s in c.seconds)) for c in runs)
        print(
            f"{name:<20} {shown([c.at_rounds(rounds) for c in runs]):>18} "
            f"{shown([c.at_seconds(seconds) for c in runs]):>18} {within:>20}"
        )
    print("FedDM, table 2, MNIST at alpha 0.01, 20 rounds: FedDM 98.21 ± 0.23, FedAvg 91.04 ± 0.80")


def table(
    name: str,
    columns: Sequence[str],
    rows: Sequence[str],
    seeds: Sequence[int],
    seconds: float,
    more: Sequence[str],
) -> None:
    paper = OmegaConf.to_container(check_overrides("train", [f"experiment={name}"]).paper)
    if not isinstance(paper, dict):
        raise ValueError(f"--experiment {name}: its yaml has no paper mapping")
    unknown = sorted(set(columns) - set(paper["columns"]))
    if unknown:
        raise ValueError(f"--column {unknown[0]!r}: {name} has {', '.join(paper['columns'])}")
    print(
        f"{paper['source']}; metric {paper['metric']}"
        + (f"; STAND-IN: {paper['stand_in']}" if paper["stand_in"] else "")
    )
    for column in columns or paper["columns"]:
        part = paper["columns"][column]
        print(f"\n{column}\n{'':<48} {'here':>15} {'paper':>7}   rounds, CPU s")
        for row, printed in part["accuracy"].items():
            if rows and row not in rows:
                continue
            curves = [
                run(
                    (f"experiment={name}", *part["overrides"], *row.split(), *more, f"seed={seed}"),
                    seconds,
                )[0]
                for seed in seeds
            ]
            used = ", ".join(f"{len(c.accuracy)} in {c.seconds[-1]:.0f}" for c in curves)
            print(
                f"{row:<48} {shown([c.accuracy[-1] for c in curves]):>15} "
                f"{math.nan if printed is None else printed:7.2f}   {used}",
                flush=True,
            )


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--experiment", help="a file of configs/experiment, without its ending")
    what.add_argument("--claim", choices=["alpha"])
    parser.add_argument("--column", action="append", default=[])
    parser.add_argument("--row", action="append", default=[])
    parser.add_argument("--seconds", type=float, help="CPU seconds of each run")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("overrides", nargs="*", help="key=value for every run")
    given = parser.parse_intermixed_args()  # key=value before or after the options
    chosen = given.claim or given.experiment
    given.seconds = given.seconds or (40.0 if chosen else 8.0)
    given.seeds = given.seeds or ([0, 1, 2] if chosen else [0])
    torch.set_num_threads(1)
    print(
        f"{hardware()}; seeds {given.seeds}, {given.seconds:g} CPU s a run; "
        f"{' '.join(given.overrides)}",
        flush=True,
    )
    if given.experiment:
        table(
            given.experiment, given.column, given.row, given.seeds, given.seconds, given.overrides
        )
    else:
        claim_alpha(given.seeds, given.seconds, given.overrides)


if __name__ == "__main__":
    main()

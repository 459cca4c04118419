"""Accuracy of ways to distil privately at equal accounted epsilon, on Fashion-MNIST.

    python -m benchmarks.equal_epsilon [--epsilons 1 3 10] [--seeds 0 1 2] [--only NAME ...]
    [--write docs/equal_epsilon.md]

FedDM: clipped_gradient, DP-SGD on the synthetic images, each record's gradient clipped at every
    matching step, beside noisy_embedding, a few noised reads and any number of steps. FedRD: a
    public projection beside a personal one that DP-SGD trains,
both with noised reads. Epsilon is the total over all rounds by PLD at delta 1e-5 (one record more
or less), calibrated before training and read off the ledger after it. No arm's rates, steps and
reads were tuned: each has one setting. Each run is a line of data/equal_epsilon-runs.csv beside the
page, and is not made again."""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from attacks.command_line import CommandParser
from benchmarks.accuracy import local_accuracy, run
from privdd.runtime.files import write_bytes

COMMON = (
    "data=fashion_mnist",
    "data.size=16",
    "preset=smoke",
    "data.limit=3000",
    "data.test_limit=1000",
    "partition.clients=3",
    "partition.alpha=0.5",
    "partition.heldout=0",
    "model.width=16",
)
LOCAL = "partition.test_fraction=0.2"  # accuracy is measured on each client's own test records
READS = ("privacy.clip_norm=5", "algo.rounds=2", "algo.reads=4", "algo.matching.iterations=50")
ARMS = {  # name -> (where the accuracy is measured, settings)
    "FedDM, clipped_gradient": (
        "one test set",
        (
            "algo=feddm_dp",
            "privacy=clipped_gradient",
            "algo.rounds=2",
            "algo.matching.iterations=20",
            "algo.matching.lr=10",
            "privacy.sampling_probability=0.1",
        ),
    ),
    "FedDM, noisy_embedding": ("one test set", ("algo=feddm_dp", *READS)),
    "FedRD, public projection": (
        "each client's own test records",
        ("algo=fedrd_dp", *READS, LOCAL),
    ),
    "FedRD, personal projection": (
        "each client's own test records",
        ("algo=fedrd_personal_dp", *READS, LOCAL),
    ),
}
FIELDS = ("method", "epsilon", "seed", "accuracy", "spent", "noise multiplier", "CPU s")


def read_runs(file: Path) -> list[dict[str, str]]:
    """The runs that were made, as text."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def add_run(file: Path, name: str, epsilon: float, seed: int) -> None:
    """Train once and append a line."""
    settings = (*COMMON, *ARMS[name][1], f"privacy.epsilon={epsilon:g}", f"seed={seed}")
    curve, experiment, progress = run(settings, math.inf)
    reached = local_accuracy(experiment, progress) if LOCAL in settings else curve.accuracy[-1]
    values = (name, f"{epsilon:g}", seed, f"{reached:.4f}", f"{progress.ledger.epsilon():.4f}")
    more = (f"{experiment.privacy.noise_multiplier:.3f}", f"{curve.seconds[-1]:.0f}")
    rows = [*(tuple(one.values()) for one in read_runs(file)), (*values, *more)]
    text = "\n".join(
        ",".join(f'"{v}"' if "," in str(v) else str(v) for v in row) for row in (FIELDS, *rows)
    )
    write_bytes(file, f"{text}\n".encode())
    print(f"{name}, epsilon {epsilon:g}, seed {seed}: {100 * reached:.1f} %", flush=True)


def write_page(page: Path, runs: Sequence[dict[str, str]]) -> None:
    """The table of means and standard deviations."""
    epsilons = sorted({float(run["epsilon"]) for run in runs})
    lines = [
        "| method | measured on | " + " | ".join(f"ε {e:g}" for e in epsilons) + " |",
        "|" + "---|" * (len(epsilons) + 2),
    ]
    for name, (where, _) in ARMS.items():
        cells = []
        for epsilon in epsilons:
            found = [
                100 * float(run["accuracy"])
                for run in runs
                if (run["method"], float(run["epsilon"])) == (name, epsilon)
            ]
            spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
            cells.append(
                f"{statistics.fmean(found):.1f}{spread} ({len(found)})" if found else "not run"
            )
        lines.append(f"| {name} | {where} | " + " | ".join(cells) + " |")
    spent = max(float(run["spent"]) / float(run["epsilon"]) for run in runs)
    text = f"""# Private distillation at equal ε

Accuracy in per cent, mean ± standard deviation over seeds, and how many. Fashion-MNIST at 16 by
16 pixels, 3,000 records, three clients (Dirichlet 0.5), a ConvNet of width 16, two rounds. ε is
the total of both rounds by PLD at δ = 1e-5, one record added or removed; no run spent more than
{spent:.3f} of what was asked for. Small sizes: compare methods, not numbers.

{chr(10).join(lines)}

`clipped_gradient` is the literal reading of "DP-SGD on the gradients of synthetic data": each
record's gradient with respect to the images of its class is clipped and noised at every one of 20
steps, of a tenth of the records. `noisy_embedding` reads the records four times a round and
matches as long as one likes, which is post-processing. Of FedRD, `fedrd_dp` makes what is sent
with a public projection; `fedrd_personal_dp` trains each client's own by DP-SGD, of the same
budget. FedRD predicts with each client's own projection, so its rows are not those of FedDM's
test set; that of `fedrd_dp` is trained without protection, for it serves the client's own
predictions alone.

No arm was tuned: each has one setting of rates, steps and reads, so a gap between two arms is one
between these settings. `python -m benchmarks.equal_epsilon` writes this page; each run is a line
of [the table of runs](data/{page.stem}-runs.csv).
"""
    write_bytes(page, text.encode())


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1, 3, 10])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--write", type=Path, default=Path("docs/equal_epsilon.md"), metavar="PAGE")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    file = given.write.parent / "data" / f"{given.write.stem}-runs.csv"
    for seed in given.seeds:
        for epsilon in given.epsilons:
            for name in given.only:
                made = {
                    (one["method"], float(one["epsilon"]), int(one["seed"]))
                    for one in read_runs(file)
                }
                if (name, epsilon, seed) not in made:
                    add_run(file, name, epsilon, seed)
    write_page(given.write, read_runs(file))
    return 0


if __name__ == "__main__":
    sys.exit(main())

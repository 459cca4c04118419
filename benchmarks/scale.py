"""How rounds and memory behave with many small clients: a linear head on digits-sized arrays,
FedAvg.

    python -m benchmarks.scale [--clients 1000] [--rounds 100] [--records 20] [--participation 1.0]
    [--engine processes]

Prints rounds per second, the parts that are not training (ledger, checkpoints, captures: the run
folder is written as an audit writes it), resident memory after a tenth of the rounds and after all
of them, and what one round leaves behind: the rows of the ledger, which keeps every release, and
little else. The arrays are random: only time and memory are measured here.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from attacks.command_line import CommandParser
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.federated.experiment import CaptureSettings, Experiment
from privdd.federated.simulation import Progress, run_round, start_training
from privdd.federated.trainer import Trainer
from privdd.runtime.run_folder import RunFolder
from privdd.runtime.startup import keep_freed_memory


def arrays(place: Path, clients: int, records: int) -> Path:
    """An npz of 8x8 images in ten classes, enough for every client, and 500 test images."""
    rng = np.random.default_rng(0)
    count = clients * records
    x = rng.random((count + 500, 8, 8), dtype=np.float32)
    y = rng.integers(0, 10, count + 500)
    np.savez(place / "digits.npz", x=x[:count], y=y[:count], x_test=x[count:], y_test=y[count:])
    return place / "digits.npz"


def resident() -> float:
    """MiB in use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def left_behind(experiment: Experiment, progress: Progress) -> tuple[float, int]:
    """(bytes that one more round leaves allocated, its releases)."""
    tracemalloc.start()
    sizes = []
    counts = []
    for _ in range(3):
        progress, _, _ = run_round(experiment.plan, progress, experiment.shards, experiment.engine)
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
        counts.append(len(progress.ledger))
    tracemalloc.stop()
    return float(sizes[2] - sizes[1]), counts[2] - counts[1]


def many_clients(place: Path, options: argparse.Namespace) -> Experiment:
    """A federation of so many small clients; its data lie in ``place``."""
    source = arrays(place, options.clients, options.records)
    settings = [
        "preset=smoke",
        "data=npz",
        f"data.root={source}",
        "data.limit=null",
        "data.test_limit=null",
        "partition=iid",
        f"partition.clients={options.clients}",
        "partition.heldout=0",
        "model=mlp",
        "model.width=16",
        "model.depth=1",
        "algo.local_epochs=1",
        f"engine={options.engine}",
        f"algo.rounds={options.rounds}",
        f"participation={options.participation}",
    ]
    return build_experiment(compose_config("train", settings))


def time_rounds_in_memory(experiment: Experiment, rounds: int) -> tuple[float, int]:
    """(seconds a round, clients that uploaded in the last of them)."""
    began = time.perf_counter()
    progress: Progress = start_training(experiment.plan, experiment.new_ledger())
    for _ in range(rounds):
        progress, _, _ = run_round(experiment.plan, progress, experiment.shards, experiment.engine)
    return (time.perf_counter() - began) / rounds, len(progress.uploaded[-1])


def run_in_folder(experiment: Experiment, folder: Path) -> Progress:
    """The training as an audit runs it, with checkpoints and captures."""
    trainer = Trainer(
        experiment.plan,
        experiment.shards,
        experiment.test_records,
        experiment.engine,
        RunFolder(folder),
        experiment.new_ledger(),
        CaptureSettings(clients="victim"),
    )
    return trainer.run()


def measure(place: Path, options: argparse.Namespace) -> Iterator[str]:
    """Lines of what is measured, in this order."""
    experiment = many_clients(place, options)
    yield (
        f"{options.clients} clients of {options.records} records, participation "
        f"{options.participation}, engine {options.engine}"
    )
    list(experiment.engine.map(str, range(8)))  # starts its workers
    memory_before = resident()
    bare, uploads = time_rounds_in_memory(experiment, max(1, options.rounds // 10))
    yield (f"one round in memory: {bare:.3f} s ({bare / max(1, uploads) * 1e3:.2f} ms a client)")
    began = time.perf_counter()
    memory_of_a_tenth = resident()
    progress = run_in_folder(experiment, place / "run")
    seconds = time.perf_counter() - began
    yield (
        f"{options.rounds} rounds as a run: {seconds:.1f} s, "
        f"{options.rounds / seconds:.2f} rounds/s, "
        f"{seconds / options.rounds / bare:.2f} times the rounds in memory"
    )
    ledger_size = (place / "run" / "ledger.json").stat().st_size
    yield f"ledger: {len(progress.ledger)} releases, {ledger_size / 2**20:.1f} MiB on disk"
    leftover, releases = left_behind(experiment, progress)
    yield (
        f"a round leaves {leftover / 2**10:.0f} KiB behind for its {releases} releases, "
        f"{leftover / releases:.0f} bytes each"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    yield (
        f"memory: {memory_before:.0f} MiB before, {memory_of_a_tenth:.0f} after a tenth of the "
        f"rounds, {resident():.0f} after all, peak {peak:.0f}"
    )


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--records", type=int, default=20)
    parser.add_argument("--participation", type=float, default=1.0)
    parser.add_argument("--engine", choices=("serial", "processes", "ray"), default="serial")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(measure(Path(folder), options)))


if __name__ == "__main__":
    main()

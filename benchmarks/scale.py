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


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--records", type=int, default=20)
    parser.add_argument("--participation", type=float, default=1.0)
    parser.add_argument("--engine", choices=("serial", "processes", "ray"), default="serial")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        source = arrays(place, given.clients, given.records)
        experiment = build_experiment(
            compose_config(
                "train",
                [
                    "preset=smoke",
                    "data=npz",
                    f"data.root={source}",
                    "data.limit=null",
                    "data.test_limit=null",
                    "partition=iid",
                    f"partition.clients={given.clients}",
                    "partition.heldout=0",
                    "model=mlp",
                    "model.width=16",
                    "model.depth=1",
                    "algo.local_epochs=1",
                    f"engine={given.engine}",
                    f"algo.rounds={given.rounds}",
                    f"participation={given.participation}",
                ],
            )
        )
        rows = [
            f"{given.clients} clients of {given.records} records, participation "
            f"{given.participation}, engine {given.engine}"
        ]
        list(experiment.engine.map(str, range(8)))  # starts its workers
        began = time.perf_counter()
        base = resident()
        progress: Progress = start_training(experiment.plan, experiment.new_ledger())
        early = base
        bare = 0.0
        for t in range(max(1, given.rounds // 10)):
            progress, _, _ = run_round(
                experiment.plan, progress, experiment.shards, experiment.engine
            )
            bare = (time.perf_counter() - began) / (t + 1)
        rows.append(
            f"one round in memory: {bare:.3f} s "
            f"({bare / max(1, len(progress.uploaded[-1])) * 1e3:.2f} ms a client)"
        )
        del progress
        began = time.perf_counter()
        early = resident()
        capture = CaptureSettings(clients="victim")
        trainer = Trainer(
            experiment.plan,
            experiment.shards,
            experiment.test_records,
            experiment.engine,
            RunFolder(place / "run"),
            experiment.new_ledger(),
            capture,
        )
        done = trainer.run()
        seconds = time.perf_counter() - began
        rows.append(
            f"{given.rounds} rounds as a run: {seconds:.1f} s, "
            f"{given.rounds / seconds:.2f} rounds/s, "
            f"{seconds / given.rounds / bare:.2f} times the rounds in memory"
        )
        rows.append(
            f"ledger: {len(done.ledger)} releases, "
            f"{(place / 'run' / 'ledger.json').stat().st_size / 2**20:.1f} MiB on disk"
        )
        left, releases = left_behind(experiment, done)
        rows.append(
            f"a round leaves {left / 2**10:.0f} KiB behind for its {releases} releases, "
            f"{left / releases:.0f} bytes each"
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        rows.append(
            f"memory: {base:.0f} MiB before, {early:.0f} after a tenth of the rounds, "
            f"{resident():.0f} after all, peak {peak:.0f}"
        )
        print("\n".join(rows))


if __name__ == "__main__":
    main()

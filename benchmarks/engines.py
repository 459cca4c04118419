"""The engines in turn on the same worlds of a FedAvg client: serial, processes, Ray with one worker
and with all.

    python -m benchmarks.engines [--worlds 16] [--workers 2] [--epochs 10] [--turns 3] [--data
    digits] [--no-ray]

Each world retrains one client of two on its own half of the audited records, as an audit with
separate replays does. Start-up (processes, the import of torch, the cluster) is printed apart; then
the engines take turns, and the medians of wall-clock seconds are compared. The results must be the
same bits."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from attacks.command_line import CommandParser
from benchmarks.machine import hardware
from privdd.auditing.pipeline import membership_game_of
from privdd.auditing.replay import ClientReplay, round_chain
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.core.types import State
from privdd.federated.simulation import run_round, start_training
from privdd.runtime.engine import Engine
from privdd.runtime.startup import keep_freed_memory


def replays(data: str, worlds: int, epochs: int) -> list[ClientReplay]:
    """Worlds 1, 2, ... of the first round, the audited client's own round run before."""
    experiment = build_experiment(
        compose_config(
            "audit",
            [
                "preset=default",
                "algo=fedavg",
                f"data={data}",
                "model=smallcnn",
                "partition=iid",
                "partition.clients=2",
                "algo.rounds=1",
                f"algo.local_epochs={epochs}",
                f"audit.worlds={worlds + 1}",
            ],
        )
    )
    plan = experiment.plan
    game = membership_game_of(experiment)
    progress, _, _ = run_round(
        plan, start_training(plan, experiment.new_ledger()), experiment.shards, Engine()
    )
    chain = round_chain(plan, progress.snapshots, 0)
    whole = experiment.shards[plan.victim]
    return [ClientReplay(plan, chain, whole, game, [w]) for w in range(1, worlds + 1)]


def replayed(replay: ClientReplay) -> State:
    return dict(replay.run()[0]["update"])


def timed(engine: Engine, tasks: Sequence[ClientReplay]) -> tuple[float, list[State]]:
    began = time.perf_counter()
    results = list(engine.map(replayed, tasks))
    return time.perf_counter() - began, results


def alike(mine: list[State], other: list[State]) -> bool:
    return all(torch.equal(a[k], b[k]) for a, b in zip(mine, other, strict=True) for k in b)


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--no-ray", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print(hardware())
    tasks = replays(given.data, given.worlds, given.epochs)
    engines = {"serial": Engine(), "processes": Engine("processes", workers=given.workers)}
    if not given.no_ray:  # the larger cluster first: the one worker is then one of its workers
        for workers in sorted({1, given.workers}, reverse=True):
            engines[f"ray, {workers}"] = Engine("ray", workers=workers)
    starts = {kind: timed(engine, tasks[:2])[0] for kind, engine in engines.items()}
    seconds: dict[str, list[float]] = {kind: [] for kind in engines}
    results = {}
    for _ in range(given.turns):
        for kind, engine in engines.items():
            took, results[kind] = timed(engine, tasks)
            seconds[kind].append(took)
    middle = {kind: statistics.median(values) for kind, values in seconds.items()}
    print(
        f"{given.worlds} worlds of {len(tasks[0].shard.train)} records, {given.epochs} "
        f"epochs, {given.workers} workers of 1 thread; "
        "the first two worlds with start-up: "
        f"{', '.join(f'{kind} {s:.1f} s' for kind, s in starts.items())}"
    )
    for kind, value in middle.items():
        same = "the same bits" if alike(results[kind], results["serial"]) else "OTHER BITS"
        print(
            f"{kind:<10} {value:6.2f} s, {middle['serial'] / value:.2f} times as fast as "
            f"serial, {same}"
        )


if __name__ == "__main__":
    main()

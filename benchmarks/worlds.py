"""Worlds of a FedDM client in one pass against separate replays and against retraining; shadow
models a second.

    python -m benchmarks.worlds            small: a few worlds and steps, about a minute
    python -m benchmarks.worlds --full     64 worlds, width 32, 256 real images of 10 classes, ipc
    10

One pass and replays: CPU seconds of one thread. Separate replays are timed on ``--replays`` worlds
and
scaled to all of them. Retraining: one federation of ``--clients`` such clients and
``--server-epochs`` of the server, ONE round, is timed and scaled to one federation a world;
real federations have more rounds.
Shadow models: see shadows.py, which also runs alone.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass, replace

import torch

from attacks.command_line import CommandParser
from benchmarks.machine import hardware
from benchmarks.shadows import shadows
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, Shard
from privdd.distillation.distribution_matching import MatchingSettings
from privdd.federated.channel import ClientContext
from privdd.federated.simulation import Plan, run_round, start_training
from privdd.methods.feddm import FedDM
from privdd.models import ModelSpec
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import Engine
from privdd.training.server import ServerTraining

SHAPE = (1, 28, 28)
CLASSES = 10


def client(per_class: int, audited: int) -> tuple[Shard, Records]:
    """Random images: the fixed records and the audited ones, over all classes."""
    n = per_class * CLASSES
    x = torch.rand((n, *SHAPE), generator=Keys(0).torch())
    records = Records(x, torch.arange(n) % CLASSES, torch.arange(n))
    empty = records.take(torch.arange(0))
    return Shard(0, records.take(torch.arange(audited, n)), empty, empty, CLASSES), records.take(
        torch.arange(audited)
    )


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def retraining(method: FedDM, shard: Shard, clients: int) -> float:
    """CPU seconds of one round of a federation of clients like this one, the server's training
    included."""
    shards = [Shard(k, shard.train, shard.heldout, shard.test, CLASSES) for k in range(clients)]
    plan = Plan(Keys(3), Problem(SHAPE, CLASSES, clients), method)
    progress = start_training(plan, Ledger())
    begin = time.process_time()
    run_round(plan, progress, shards, Engine())
    return time.process_time() - begin


def read_options() -> argparse.Namespace:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--full", action="store_true", help="64 worlds, width 32, batch 256, ipc 10"
    )
    parser.add_argument("--worlds", type=int)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--replays", type=int, default=2, help="separate replays to time")
    parser.add_argument(
        "--clients", type=int, default=10, help="of the federation that is retrained"
    )
    parser.add_argument("--server-epochs", type=int, default=30)
    parser.add_argument(
        "--shadows", type=int, default=64, help="shadow models of each kind to train each way"
    )
    options = parser.parse_args()
    options.worlds = options.worlds or (64 if options.full else 16)
    return options


def small_feddm(options: argparse.Namespace) -> FedDM:
    return FedDM(
        model=ModelSpec(width=32 if options.full else 16),
        rounds=1,
        matching=MatchingSettings(options.iterations, batch=256 if options.full else 64),
        server=ServerTraining(epochs=options.server_epochs, batch_size=64),
        ipc=10,
        start="noise",
    )


@dataclass(frozen=True)
class ReplayTimes:
    """CPU seconds of all replays in one pass and, scaled, one after the other; gap: the largest
    difference of any pixel; memory: (before, after) the pass, in MB."""

    one_pass: float
    separate: float
    gap: float
    memory: tuple[float, float]


def time_replays(
    method: FedDM, shard: Shard, candidates: Records, worlds: int, replays: int
) -> ReplayTimes:
    """Time all replays in one pass, and ``replays`` of them one after the other."""
    problem = Problem(SHAPE, CLASSES, 1)
    masks = torch.rand((worlds, len(candidates)), generator=Keys(1).torch()) < 0.5
    broadcast = method.broadcast(method.init(problem, Keys(0)))

    def context() -> ClientContext:
        return ClientContext(0, 0, Keys(2), problem, queries=method.queries)

    warm_up = replace(method, matching=replace(method.matching, iterations=1))
    warm_up.local(broadcast, {}, shard, context())
    start = time.process_time()
    memory_before = megabytes()
    clients = []
    for mask in masks:
        records = Records.concat([shard.train, candidates.take(mask)])
        clients.append(shard.with_train(records))
    contexts = [context() for _ in clients]
    batched = method.local_batched(broadcast, [{}] * worlds, clients, contexts) or ()
    uploads = [upload for upload, _ in batched]
    one_pass = time.process_time() - start
    memory = (memory_before, megabytes())
    gap = 0.0
    start = time.process_time()
    for world in range(replays):
        upload, _ = method.local(broadcast, {}, clients[world], context())
        images = upload["images"].value["x"]
        gap = max(gap, float((images - uploads[world]["images"].value["x"]).abs().max()))
    separate = (time.process_time() - start) / replays * worlds
    return ReplayTimes(one_pass, separate, gap, memory)


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)
    print(hardware())
    method = small_feddm(options)
    batch = method.matching.batch
    shard, candidates = client(batch, min(400, batch * CLASSES // 2))
    times = time_replays(method, shard, candidates, options.worlds, options.replays)
    print(
        f"width {method.model.width}, batch {batch}, ipc {method.ipc}, {options.worlds} worlds, "
        f"{options.iterations} iterations, 1 thread"
    )
    print(
        f"one pass {times.one_pass:.1f} s, separate replays {times.separate:.1f} s: "
        f"{times.separate / times.one_pass:.1f} times faster"
    )
    print(
        f"largest difference of any pixel {times.gap:.1e}; peak memory {times.memory[1]:.0f} MB "
        f"(before the pass {times.memory[0]:.0f} MB)"
    )
    federation = retraining(method, shard, options.clients)
    print(
        f"one federation of {options.clients} clients, 1 round: {federation:.1f} s; "
        f"{options.worlds} of them, scaled: {federation * options.worlds:.0f} s, "
        f"{federation * options.worlds / times.one_pass:.0f} times the one pass (R rounds: R "
        "times that)"
    )
    shadows(options.shadows, 2)


if __name__ == "__main__":
    main()

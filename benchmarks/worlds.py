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
from dataclasses import replace

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


def main() -> None:
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
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(hardware())
    width, batch, ipc, worlds = (32, 256, 10, 64) if args.full else (16, 64, 10, 16)
    worlds = args.worlds or worlds
    matching = MatchingSettings(args.iterations, batch=batch)
    method = FedDM(
        model=ModelSpec(width=width),
        rounds=1,
        matching=matching,
        server=ServerTraining(epochs=args.server_epochs, batch_size=64),
        ipc=ipc,
        start="noise",
    )
    problem = Problem(SHAPE, CLASSES, 1)
    shard, candidates = client(batch, min(400, batch * CLASSES // 2))
    masks = torch.rand((worlds, len(candidates)), generator=Keys(1).torch()) < 0.5
    sent = method.broadcast(method.init(problem, Keys(0)))

    def context() -> ClientContext:
        return ClientContext(0, 0, Keys(2), problem, queries=method.queries)

    # warm up
    replace(method, matching=replace(matching, iterations=1)).local(sent, {}, shard, context())
    start = time.process_time()
    before = megabytes()
    clients = [
        shard.with_train(Records.concat([shard.train, candidates.take(mask)])) for mask in masks
    ]
    together = [
        upload
        for upload, _ in method.local_batched(sent, [{}] * worlds, clients, [context()] * worlds)
        or ()
    ]
    one_pass = time.process_time() - start
    peak = megabytes()
    gap = 0.0
    start = time.process_time()
    for world in range(args.replays):
        upload, _ = method.local(sent, {}, clients[world], context())
        gap = max(
            gap,
            float((upload["images"].value["x"] - together[world]["images"].value["x"]).abs().max()),
        )
    separate = (time.process_time() - start) / args.replays * worlds
    print(
        f"width {width}, batch {batch}, ipc {ipc}, {worlds} worlds, {args.iterations} "
        "iterations, 1 thread"
    )
    print(
        f"one pass {one_pass:.1f} s, separate replays {separate:.1f} s: "
        f"{separate / one_pass:.1f} times faster"
    )
    print(
        f"largest difference of any pixel {gap:.1e}; peak memory {peak:.0f} MB (before "
        f"the pass {before:.0f} MB)"
    )
    federation = retraining(method, shard, args.clients)
    print(
        f"one federation of {args.clients} clients, 1 round: {federation:.1f} s; {worlds} "
        f"of them, scaled: {federation * worlds:.0f} s, "
        f"{federation * worlds / one_pass:.0f} times the one pass (R rounds: R times that)"
    )
    shadows(args.shadows, 2)


if __name__ == "__main__":
    main()

"""Worlds of a FedDM client in one pass against separate replays and against retraining; shadow models a second.

    python benchmarks/worlds.py            small: a few worlds and steps, about a minute
    python benchmarks/worlds.py --full     64 worlds, width 32, 256 real images of 10 classes, ipc 10

One pass and replays: CPU seconds of one thread. Separate replays are timed on ``--replays`` worlds and
scaled to all of them. Retraining: one federation of ``--clients`` such clients and ``--server-epochs`` of
the server, ONE round, is timed and scaled to one federation a world; real federations have more rounds.
Shadow models: wall clock of the engine's processes (one thread each) against a loop over DataLoaders, on
all cores and on one, the same models, records and steps; without the start of the processes.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from dataclasses import dataclass, replace

import torch
from machine import hardware
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from privdd.channel import ClientContext
from privdd.core import Keys, Problem, Records, Shard
from privdd.distill.matching import Matching
from privdd.engine import Engine, threads
from privdd.federation import Plan, start, step
from privdd.ledger import Ledger
from privdd.methods.feddm import FedDM
from privdd.methods.local import local_sgd
from privdd.methods.union import ServerTraining
from privdd.models import ModelSpec, build, initial
from privdd.models.build import skeleton

SHAPE, CLASSES = (1, 28, 28), 10


def client(per_class: int, audited: int) -> tuple[Shard, Records]:
    """Random images: the fixed records and the audited ones, over all classes."""
    n = per_class * CLASSES
    x = torch.rand((n, *SHAPE), generator=Keys(0).torch())
    records = Records(x, torch.arange(n) % CLASSES, torch.arange(n))
    empty = records.take(torch.arange(0))
    return Shard(0, records.take(torch.arange(audited, n)), empty, empty, CLASSES), records.take(torch.arange(audited))


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def retraining(method: FedDM, shard: Shard, clients: int) -> float:
    """CPU seconds of one round of a federation of clients like this one, the server's training included."""
    shards = [Shard(k, shard.train, shard.heldout, shard.test, CLASSES) for k in range(clients)]
    plan = Plan(Keys(3), Problem(SHAPE, CLASSES, clients), method)
    progress, begin = start(plan, Ledger()), time.process_time()
    step(plan, progress, shards, Engine())
    return time.process_time() - begin


@dataclass(frozen=True)
class Shadow:
    """One shadow model: a network of its own on its own half of the records."""

    spec: ModelSpec
    records: Records
    world: int
    epochs: int

    @property
    def mine(self) -> Records:
        return self.records.take(torch.rand(len(self.records), generator=Keys(4).fold(self.world).torch()) < 0.5)


def train_shadow(task: Shadow) -> float:
    """By the stack's own training; returns a weight, so that work cannot be skipped."""
    state = initial(task.spec, SHAPE, CLASSES, Keys(5).fold(task.world).torch())
    model, generator = skeleton(task.spec, SHAPE, CLASSES), Keys(6).fold(task.world).torch()
    after = local_sgd(model, state, task.mine, lr=0.05, batch_size=64, epochs=task.epochs, momentum=0.9, weight_decay=0.0, generator=generator)[0]
    return float(after["head.bias"][0])


def train_plain(task: Shadow) -> float:
    """As in a notebook: DataLoader, torch.optim, one model after the other."""
    model = build(task.spec, SHAPE, CLASSES)
    model.load_state_dict(initial(task.spec, SHAPE, CLASSES, Keys(5).fold(task.world).torch()))
    loader = DataLoader(TensorDataset(task.mine.x, task.mine.y), 64, shuffle=True, generator=Keys(6).fold(task.world).torch())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(task.epochs):
        for x, y in loader:
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()
    return float(model.state_dict()["head.bias"][0])


def shadows(count: int, spec: ModelSpec, records: Records, workers: int) -> None:
    """Models a second, in turns of a quarter each, so that a busy machine hits both alike."""
    tasks = [Shadow(spec, records, k, 2) for k in range(count)]
    engine, cores = Engine("processes", workers=workers, threads=1), os.cpu_count() or 1
    list(engine.map(train_shadow, tasks[: 2 * workers]))  # starts the processes
    ways = {f"DataLoader loop, {n} threads": n for n in (cores, 1)} | {f"{workers} processes": 0}
    times = dict.fromkeys(ways, 0.0)
    for part in (tasks[k::4] for k in range(4)):
        for name, count_of in ways.items():
            begin = time.perf_counter()
            if count_of:
                with threads(count_of):
                    for task in part:
                        train_plain(task)
            else:
                list(engine.map(train_shadow, part))
            times[name] += time.perf_counter() - begin
    print(f"shadow models ({spec.name} {spec.width}, {len(records) // 2} records, 2 epochs), processes against each loop:")
    for name, seconds in times.items():
        print(f"  {name:<28} {count / seconds:6.2f} models a second, {seconds / times[f'{workers} processes']:.2f} times slower")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="64 worlds, width 32, batch 256, ipc 10")
    parser.add_argument("--worlds", type=int)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--replays", type=int, default=2, help="separate replays to time")
    parser.add_argument("--clients", type=int, default=10, help="of the federation that is retrained")
    parser.add_argument("--server-epochs", type=int, default=30)
    parser.add_argument("--shadows", type=int, default=16, help="shadow models to train each way")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(hardware())
    width, batch, ipc, worlds = (32, 256, 10, 64) if args.full else (16, 64, 10, 16)
    worlds = args.worlds or worlds
    matching = Matching(args.iterations, batch=batch)
    method = FedDM(
        model=ModelSpec(width=width), rounds=1, matching=matching, server=ServerTraining(epochs=args.server_epochs, batch_size=64), ipc=ipc, start="noise"
    )
    problem = Problem(SHAPE, CLASSES, 1)
    shard, candidates = client(batch, min(400, batch * CLASSES // 2))
    masks = torch.rand((worlds, len(candidates)), generator=Keys(1).torch()) < 0.5
    sent = method.broadcast(method.init(problem, Keys(0)))

    def context() -> ClientContext:
        return ClientContext(0, 0, Keys(2), problem, queries=method.queries)

    replace(method, matching=replace(matching, iterations=1)).local(sent, {}, shard, context())  # warm up
    start, before = time.process_time(), megabytes()
    together = method.local_worlds(sent, {}, shard, candidates, masks, context())
    one_pass = time.process_time() - start
    peak = megabytes()
    gap, start = 0.0, time.process_time()
    for world in range(args.replays):
        alone = shard.with_train(Records.concat([shard.train, candidates.take(masks[world])]))
        upload, _ = method.local(sent, {}, alone, context())
        gap = max(gap, float((upload["images"].value["x"] - together[world]["images"].value["x"]).abs().max()))
    separate = (time.process_time() - start) / args.replays * worlds
    print(f"width {width}, batch {batch}, ipc {ipc}, {worlds} worlds, {args.iterations} iterations, 1 thread")
    print(f"one pass {one_pass:.1f} s, separate replays {separate:.1f} s: {separate / one_pass:.1f} times faster")
    print(f"largest difference of any pixel {gap:.1e}; peak memory {peak:.0f} MB (before the pass {before:.0f} MB)")
    federation = retraining(method, shard, args.clients)
    print(f"one federation of {args.clients} clients, 1 round: {federation:.1f} s; {worlds} of them, scaled: {federation * worlds:.0f} s, "
          f"{federation * worlds / one_pass:.0f} times the one pass (R rounds: R times that)")
    shadows(args.shadows, ModelSpec("smallcnn", width=32, depth=2, norm="none", pooling="max"), candidates, 2)


if __name__ == "__main__":
    main()

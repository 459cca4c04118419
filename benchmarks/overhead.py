"""What the stack costs over a bare loop: rounds of a model-averaging method, Fashion-MNIST, ConvNet of width 32.

    python benchmarks/overhead.py [--method fedavg] [--records 2000] [--rounds 2] [--repeats 5] [--data fashion_mnist]

The bare loop does the same arithmetic (same batches, steps, average) with torch.optim and nothing else;
the stack adds streams, channel, digests, ledger and snapshots. Both are timed in turn, in process CPU
time on one thread, and the ratio of the medians is printed. Goal: at most 1.15. Falls back to
scikit-learn's digits where Fashion-MNIST cannot be found.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from privdd.core import Keys, Problem, Records, Shard, State
from privdd.data.sources import load
from privdd.engine import Engine
from privdd.federation import Plan, start, step
from privdd.ledger import Ledger
from privdd.methods.fedavg import FedAvg
from privdd.methods.fednova import FedNova
from privdd.methods.fedprox import FedProx
from privdd.methods.scaffold import Scaffold
from privdd.models import ModelSpec, build, initial

METHODS = {"fedavg": FedAvg, "fedprox": FedProx, "fednova": FedNova, "scaffold": Scaffold}
LR, BATCH, KEYS = 0.05, 64, Keys(0)


def records_of(name: str, count: int) -> Records:
    """``count`` training records, from digits where ``name`` cannot be had."""
    try:
        return load(name, limit=count, keys=KEYS).train
    except ValueError as error:
        print(f"{name}: {error}; using digits")
        return load("digits", limit=count, keys=KEYS).train


def bare(spec: ModelSpec, shards: Sequence[Shard], rounds: int) -> State:
    """FedAvg with plain SGD as one would write it in a notebook."""
    shape, classes = shards[0].shape, shards[0].classes
    state = initial(spec, shape, classes, KEYS.fold("public", "init", "model").torch())
    total = sum(len(shard.train) for shard in shards)
    model = build(spec, shape, classes)
    for t in range(rounds):
        mean = {name: torch.zeros_like(value) for name, value in state.items()}
        for shard in shards:
            model.load_state_dict(state)
            optimiser = torch.optim.SGD(model.parameters(), lr=LR)
            generator = KEYS.fold("round", t, "client", shard.client, "batch").torch()
            for at in torch.randperm(len(shard.train), generator=generator).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(model(shard.train.x[at]), shard.train.y[at]).backward()
                optimiser.step()
            for name, value in model.state_dict().items():
                mean[name] += value * (len(shard.train) / total)
        state = mean
    return state


def stack(method: FedAvg, shards: Sequence[Shard], rounds: int) -> State:
    """The same rounds through the federation."""
    problem = Problem(shards[0].shape, shards[0].classes, len(shards))
    plan = Plan(KEYS, problem, method)
    progress, seen = start(plan, Ledger("zero_out", "record", 1e-5)), None
    for _ in range(rounds):
        progress, _, seen = step(plan, progress, shards, Engine(), seen)
    return progress.server


def seconds(work: Callable[[], State]) -> tuple[float, State]:
    begin = time.process_time()
    state = work()
    return time.process_time() - begin, state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=sorted(METHODS), default="fedavg")
    parser.add_argument("--data", default="fashion_mnist")
    for name, value in (("records", 2000), ("clients", 10), ("rounds", 2), ("repeats", 5), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = records_of(args.data, args.records)
    classes = int(records.y.max()) + 1
    parts = torch.arange(len(records)).tensor_split(args.clients)
    shards = [Shard(k, records.take(at), records.take([0]), records.take([0]), classes) for k, at in enumerate(parts)]
    spec = ModelSpec(name="convnet", width=args.width, depth=3)
    method = METHODS[args.method](
        model=spec, rounds=args.rounds, lr=LR, momentum=0.0, weight_decay=0.0, batch_size=BATCH, local_epochs=1.0
    )
    plain, ours = [], []
    for _ in range(args.repeats):
        cost, loop = seconds(lambda: bare(spec, shards, args.rounds))
        plain.append(cost)
        cost, server = seconds(lambda: stack(method, shards, args.rounds))
        ours.append(cost)
    gap = max((server[f"model/{name}"] - value).abs().max().item() for name, value in loop.items())
    a, b = statistics.median(plain), statistics.median(ours)
    shape = tuple(records.x.shape[1:])
    print(f"{args.method}, {len(records)} records {shape}, {args.clients} clients, {args.rounds} rounds")
    print(f"bare loop {a:.2f} CPU s, stack {b:.2f} CPU s, ratio {b / a:.3f}; largest difference of a weight {gap:.1e}")


if __name__ == "__main__":
    main()

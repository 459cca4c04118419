"""Simulated rounds beside a bare loop and beside Flower's simulation: 100 clients of 50 records,
FedAvg.

    python -m benchmarks.simulation [--clients 100] [--records 50] [--rounds 3] [--model mlp]
    [--no-flower]

The three do the same arithmetic on the same network and 28x28 arrays. The bare loop is
torch.optim.SGD and an average, and nothing else; it runs in privdd's process, whose allocator keeps
its memory. Flower runs through its in-process simulation on Ray, on all cores; its start is printed
apart and its rounds are timed from the second on. Seconds are wall clock; loop, serial and
processes take turns."""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise

import torch
from torch.nn import functional as F

from attacks.command_line import CommandParser
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, Shard
from privdd.federated.simulation import Plan, run_round, start_training
from privdd.methods.fedavg import FedAvg
from privdd.models import ModelSpec, build, initial
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import Engine
from privdd.runtime.startup import keep_freed_memory

SHAPE = (1, 28, 28)
CLASSES = 10
LR = 0.05
BATCH = 10
SPECS = {"mlp": ModelSpec("mlp", width=32, depth=1), "convnet": ModelSpec("convnet", width=16)}
State = dict[str, torch.Tensor]


def shard_of(client: int, records: int) -> Shard:
    generator = Keys(1).fold("client", client).torch()
    x = torch.rand(records, *SHAPE, generator=generator)
    y = torch.randint(CLASSES, (records,), generator=generator)
    train = Records(x, y, torch.arange(records))
    empty = train.take(torch.zeros(records, dtype=torch.bool))
    return Shard(client, train, empty, empty, CLASSES)


def train_bare(model: torch.nn.Module, state: State, shard: Shard) -> State:
    """One epoch of plain SGD from ``state``."""
    model.load_state_dict(state)
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=1e-5)
    order = torch.randperm(len(shard.train), generator=Keys(2).fold(shard.client).torch())
    for batch in order.split(BATCH):
        optimiser.zero_grad()
        F.cross_entropy(model(shard.train.x[batch]), shard.train.y[batch]).backward()
        optimiser.step()
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def bare_round(model: torch.nn.Module, state: State, shards: list[Shard]) -> State:
    results = [train_bare(model, state, shard) for shard in shards]
    return {name: torch.stack([r[name] for r in results]).mean(0) for name in state}


def bare(spec: ModelSpec, shards: list[Shard], rounds: int) -> list[float]:
    model = build(spec, SHAPE, CLASSES)
    state = initial(spec, SHAPE, CLASSES, Keys(0).torch())
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        state = bare_round(model, state, shards)
        seconds.append(time.perf_counter() - began)
    return seconds


def ours(spec: ModelSpec, shards: list[Shard], rounds: int, engine: Engine) -> list[float]:
    method = FedAvg(model=spec, rounds=rounds, lr=LR, batch_size=BATCH, local_epochs=1)
    plan = Plan(Keys(0), Problem(SHAPE, CLASSES, len(shards)), method)
    progress = start_training(plan, Ledger("zero_out"))
    seconds = []
    seen = None
    for _ in range(rounds):
        began = time.perf_counter()
        progress, _, seen = run_round(plan, progress, shards, engine, seen)
        seconds.append(time.perf_counter() - began)
    return seconds


def flower(spec: ModelSpec, clients: int, records: int, rounds: int) -> tuple[float, list[float]]:
    """(seconds until the first round ended, seconds of each later round) of Flower's own
    simulation."""
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    client_app = ClientApp()
    server_app = ServerApp()
    ends = []

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        shard = shard_of(int(context.node_config["partition-id"]), records)
        state = message.content.array_records["model"].to_torch_state_dict()
        after = train_bare(build(spec, SHAPE, CLASSES), dict(state), shard)
        return Message(RecordDict({"model": ArrayRecord(after)}), reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        state = initial(spec, SHAPE, CLASSES, Keys(0).torch())
        while len(nodes := list(grid.get_node_ids())) < clients:  # they register one by one
            time.sleep(0.1)
        for _ in range(rounds):
            asked = [
                Message(RecordDict({"model": ArrayRecord(state)}), node, "train") for node in nodes
            ]
            results = [
                r.content.array_records["model"].to_torch_state_dict()
                for r in grid.send_and_receive(asked)
            ]
            state = {name: torch.stack([r[name] for r in results]).mean(0) for name in state}
            ends.append(time.perf_counter())

    began = time.perf_counter()
    run_simulation(
        server_app, client_app, clients, backend_config={"client_resources": {"num_cpus": 1}}
    )
    return ends[0] - began, [b - a for a, b in pairwise(ends)]


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--records", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", choices=sorted(SPECS), default="mlp")
    parser.add_argument("--no-flower", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    shards = [shard_of(k, given.records) for k in range(given.clients)]
    spec = SPECS[given.model]
    bare(spec, shards[:5], 1)
    ours(spec, shards[:5], 1, Engine())
    pool = Engine("processes", workers=2)
    began = ours(spec, shards, 1, pool)[0]
    turns = [
        (
            bare(spec, shards, 1)[0],
            ours(spec, shards, 1, Engine())[0],
            ours(spec, shards, 1, pool)[0],
        )
        for _ in range(given.rounds)
    ]
    loop, serial, processes = (statistics.median(column) for column in zip(*turns))
    print(f"bare loop          {loop:.3f} s a round")
    print(f"privdd, serial     {serial:.3f} s, {serial / loop:.2f} times the bare loop")
    print(
        f"privdd, processes  {processes:.3f} s on 2 workers, {serial / processes:.2f} "
        f"times as fast as serial ({began:.1f} s the first)"
    )
    if not given.no_flower:
        first, later = flower(spec, given.clients, given.records, given.rounds + 1)
        theirs = statistics.median(later)
        print(f"Flower simulation  {theirs:.3f} s ({first:.1f} s until the first round ended)")
        print(
            f"privdd is {theirs / serial:.1f} times as fast serially, "
            f"{theirs / processes:.1f} times with processes"
        )


if __name__ == "__main__":
    main()

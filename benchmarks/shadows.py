"""Shadow models a second: a loop over DataLoaders against the stack's own ways, same models,
records and steps.

    python -m benchmarks.shadows [--count 48] [--workers 2] [--case 28x28 digits mlp]

The plain loop trains one model after the other with torch.optim and DataLoaders, on all cores and
on one.
Ours: one task a model on the engine's processes, one thread each; wide networks of eight models on
    the same processes; and the way that ``audit.training=auto`` takes. All start from the
same weights on their own random half of the records, as the worlds of one client do. Wall clock,
without the start of the processes, in turns of a quarter each, so that a busy machine hits all
alike."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from attacks.command_line import CommandParser
from benchmarks.machine import hardware
from privdd.auditing.shadow_models import prefers_wide_network
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, Shard
from privdd.federated.channel import ClientContext
from privdd.methods.fedavg import FedAvg
from privdd.models import ModelSpec, build
from privdd.runtime.engine import Engine, torch_threads

TOGETHER = FedAvg.worlds_per_pass  # models of one wide network


@dataclass(frozen=True)
class Case:
    """One kind of shadow model; records: how many exist, each model sees about half of them."""

    title: str
    spec: ModelSpec
    shape: tuple[int, int, int]
    records: int
    batch: int
    epochs: int

    @property
    def method(self) -> FedAvg:
        return FedAvg(
            model=self.spec,
            rounds=1,
            lr=0.05,
            momentum=0.9,
            weight_decay=0.0,
            batch_size=self.batch,
            local_epochs=self.epochs,
            weighting="uniform",
        )


CASES = {
    "28x28": Case(
        "(a) small CNN, width 32, 28x28", ModelSpec("smallcnn", width=32), (1, 28, 28), 400, 64, 2
    ),
    "digits": Case(
        "(b) small CNN, width 32, digits 8x8",
        ModelSpec("smallcnn", width=32),
        (1, 8, 8),
        400,
        16,
        5,
    ),
    "mlp": Case("(c) MLP, width 64, digits 8x8", ModelSpec("mlp", width=64), (1, 8, 8), 400, 16, 5),
}


@dataclass(frozen=True)
class Shadows:
    """Some shadow models of one case."""

    case: Case
    pool: Records
    start: dict[str, torch.Tensor]
    worlds: tuple[int, ...]

    def shard(self, world: int) -> Shard:
        inside = torch.rand(len(self.pool), generator=Keys(4).fold(world).torch()) < 0.5
        empty = self.pool.take(torch.arange(0))
        return Shard(0, self.pool.take(inside), empty, empty, 10)

    def context(self, world: int) -> ClientContext:
        return ClientContext(0, 0, Keys(6).fold("world", world), Problem(self.case.shape, 10, 1))

    def batch_stream(self, world: int) -> torch.Generator:
        return self.context(world).keys.fold("batch").torch()


def one_by_one(task: Shadows) -> float:
    """``FedAvg.local`` of each; returns a weight, so that work cannot be skipped."""
    sent = {"model": task.start}
    done = [
        task.case.method.local(sent, {}, task.shard(w), task.context(w))[0] for w in task.worlds
    ]
    return float(sum(upload["update"].value["head.bias"][0] for upload in done))


def side_by_side(task: Shadows) -> float:
    """The same as one wide network."""
    shards = [task.shard(w) for w in task.worlds]
    contexts = [task.context(w) for w in task.worlds]
    done = task.case.method.local_batched(
        {"model": task.start}, [{} for _ in shards], shards, contexts
    )
    return float(sum(upload["update"].value["head.bias"][0] for upload, _ in done or ()))


def plain(task: Shadows) -> float:
    """As in a notebook: DataLoader, torch.optim, one model after the other."""
    total = 0.0
    for world in task.worlds:
        model = build(task.case.spec, task.case.shape, 10)
        mine = task.shard(world).train
        model.load_state_dict(task.start)
        loader = DataLoader(
            TensorDataset(mine.x, mine.y),
            task.case.batch,
            shuffle=True,
            generator=task.batch_stream(world),
        )
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(task.case.epochs):
            for x, y in loader:
                optimiser.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimiser.step()
        total += float(model.state_dict()["head.bias"][0])
    return total


def prepared(case: Case, count: int) -> Shadows:
    """``count`` models of a case: digits where they fit, random images elsewhere."""
    if case.shape == (1, 8, 8):
        x = torch.tensor(load_digits().images[: case.records] / 16, dtype=torch.float32)[:, None]
    else:
        x = torch.rand((case.records, *case.shape), generator=Keys(0).torch())
    pool = Records(x, torch.arange(case.records) % 10, torch.arange(case.records))
    server = case.method.init(Problem(case.shape, 10, 1), Keys(5))
    return Shadows(case, pool, case.method.broadcast(server)["model"], tuple(range(count)))  # type: ignore[arg-type]


def parts(whole: Shadows, size: int) -> list[Shadows]:
    split = [whole.worlds[index : index + size] for index in range(0, len(whole.worlds), size)]
    return [Shadows(whole.case, whole.pool, whole.start, worlds) for worlds in split]


Way = Callable[[Shadows], object]


def ways(workers: int) -> dict[str, Way]:
    engine = Engine("processes", workers=workers, threads=1)
    cores = os.cpu_count() or 1

    def loop(count: int) -> Way:
        def run(task: Shadows) -> None:
            with torch_threads(count):
                plain(task)

        return run

    return {
        f"DataLoader loop, {cores} threads": loop(cores),
        "DataLoader loop, 1 thread": loop(1),
        f"{workers} processes, one by one": lambda task: list(
            engine.map(one_by_one, parts(task, 1))
        ),
        f"{workers} processes, {TOGETHER} side by side": lambda task: list(
            engine.map(side_by_side, parts(task, TOGETHER))
        ),
    }


def auto(case: Case, count: int) -> str:
    """What ``audit.training=auto`` takes."""
    wide = prefers_wide_network(case.method, Problem(case.shape, 10, 1), count)
    return f"auto takes: {'wide networks' if wide else 'one by one'}"


def compare(case: Case, count: int, workers: int) -> None:
    whole = prepared(case, count)
    sides = ways(workers)
    for way in sides.values():
        way(parts(whole, 2 * TOGETHER)[0])  # starts the processes, and first calls are slow
    times = dict.fromkeys(sides, 0.0)
    for part in parts(whole, -(-count // 4)):
        for name, way in sides.items():
            begin = time.perf_counter()
            way(part)
            times[name] += time.perf_counter() - begin
    report(case, count, times)
    print(f"  {auto(case, count)}")


def report(case: Case, count: int, times: dict[str, float]) -> None:
    loops = {name: seconds for name, seconds in times.items() if name.startswith("DataLoader")}
    print(
        f"shadow models {case.title}, {case.records // 2} records, {case.epochs} epochs, "
        f"batches of {case.batch}:"
    )
    for name, seconds in times.items():
        against = ", ".join(f"{loop / seconds:.2f}" for loop in loops.values())
        print(
            f"  {name:<32} {count / seconds:7.2f} models a second, {against} times the loops above"
        )


def shadows(count: int, workers: int, cases: Sequence[str] = tuple(CASES)) -> None:
    """All cases, one after the other."""
    for name in cases:
        compare(CASES[name], count, workers)


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--count",
        type=int,
        default=64,
        help="shadow models of each case; wide networks want 64 on two cores",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=list(CASES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(hardware())
    shadows(args.count, args.workers, args.case)


if __name__ == "__main__":
    main()

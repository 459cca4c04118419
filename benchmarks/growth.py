"""How CPU seconds and peak memory grow with clients, records a client, worlds and image size: a
table and a plot.

    python -m benchmarks.growth [--full] [--plot growth.png]
    python -m benchmarks.growth --audits [--algo fedavg] [--full]    whole audits instead

Clients, records and image size: one FedAvg round (one epoch, batches of 10) of a multi-layer
perceptron, for image size of a ConvNet of width 16. Worlds: one round of one client, replayed one
after the other (FedAvg) and in one pass (FedDM, 4 iterations). Random images in ten classes, one
thread, every point in a process of its own; memory is the peak above what the process had before.
The last column is the power of the size that the seconds grow with, from the smallest to the
largest size: 1 is linear.

Whole audits: ``privdd.audit`` of ``--algo`` at preset=smoke on Fashion-MNIST, one process, one size
changed at a time, each four times the last. CPU seconds and peak memory are the process's own.
Every audit begins with the same start-up and attacks, so their powers are those above the fixed
part (``growth_power``), of the largest three sizes.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from attacks.command_line import CommandParser
from benchmarks.machine import hardware
from privdd.auditing.replay import ClientReplay, MembershipGame, round_chain
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, Shard
from privdd.distillation.distribution_matching import MatchingSettings
from privdd.federated.channel import ClientContext
from privdd.federated.simulation import Plan, run_round, start_training
from privdd.methods.fedavg import FedAvg
from privdd.methods.feddm import FedDM
from privdd.models import ModelSpec
from privdd.privacy.ledger import Ledger
from privdd.runtime.engine import Engine
from privdd.runtime.startup import keep_freed_memory
from privdd.training.server import ServerTraining

CLASSES = 10
TURNS = 3
MLP = ModelSpec("mlp", width=32, depth=1)
STEP = 4  # a size of a whole audit is so many times the one before
RECORDS_OF_CLIENT = 250
# Settings that make a size of a whole audit, and the sizes. The records are shared by all clients,
# so they grow with these. A network's parameters grow with the square of its width.
AUDITS: dict[str, tuple[str, Sequence[int], Sequence[int]]] = {
    "clients": ("partition.clients={0} data.limit={records}", (4, 16, 64), (4, 16, 64, 256)),
    "records": ("data.limit={0}", (1000, 4000, 16000), (1000, 4000, 16000, 60000)),
    "shadow models": ("audit.worlds={0}", (8, 32, 128), (8, 32, 128, 512)),
    "parameters (width)": ("model.width={0}", (8, 16, 32), (8, 16, 32, 64)),
    "rounds": ("algo.rounds={0}", (2, 8, 32), (2, 8, 32, 128)),
}


def shard_of(client: int, records: int, size: int) -> Shard:
    x = torch.rand((records, 1, size, size), generator=Keys(1).fold("client", client).torch())
    train = Records(x, torch.arange(records) % CLASSES, torch.arange(records))
    empty = train.take(torch.arange(0))
    return Shard(client, train, empty, empty, CLASSES)


def federation(
    clients: int, records: int, size: int, spec: ModelSpec = MLP
) -> tuple[Plan, list[Shard]]:
    method = FedAvg(model=spec, rounds=1, lr=0.05, batch_size=10, local_epochs=1)
    return Plan(Keys(0), Problem((1, size, size), CLASSES, clients), method), [
        shard_of(k, records, size) for k in range(clients)
    ]


def rounds(
    clients: int = 10, records: int = 50, size: int = 28, spec: ModelSpec = MLP
) -> Callable[[], object]:
    plan, shards = federation(clients, records, size, spec)
    return lambda: run_round(plan, start_training(plan, Ledger("zero_out")), shards, Engine())


def replays(worlds: int) -> Callable[[], object]:
    plan, shards = federation(1, 200, 28)
    progress, _, _ = run_round(plan, start_training(plan, Ledger("zero_out")), shards, Engine())
    masks = torch.rand((worlds, 100), generator=Keys(2).torch()) < 0.5
    game = MembershipGame(shards[0].train, torch.arange(100), masks, "add_remove")
    chain = round_chain(plan, progress.snapshots, 0)
    tasks = [ClientReplay(plan, chain, shards[0], game, [w]) for w in range(worlds)]
    return lambda: [task.run() for task in tasks]


def one_pass(worlds: int) -> Callable[[], object]:
    method = FedDM(
        model=ModelSpec(width=16),
        rounds=1,
        matching=MatchingSettings(4, batch=64),
        server=ServerTraining(epochs=1, batch_size=64),
        ipc=5,
        start="noise",
    )
    problem = Problem((1, 28, 28), CLASSES, 1)
    shard = shard_of(0, 640, 28)
    sent = method.broadcast(method.init(problem, Keys(0)))
    masks = torch.rand((worlds, 200), generator=Keys(2).torch()) < 0.5
    rest = torch.ones(worlds, 440, dtype=torch.bool)
    clients = [shard.with_train(shard.train.take(mask)) for mask in torch.cat([masks, rest], 1)]
    contexts = [ClientContext(0, 0, Keys(3), problem, queries=method.queries) for _ in clients]
    return lambda: method.local_batched(sent, [{}] * worlds, clients, contexts)


@dataclass(frozen=True)
class Axis:
    """One size that grows; make(size) prepares a call, full: the sizes of --full."""

    name: str
    make: Callable[[int], Callable[[], object]]
    small: Sequence[int]
    full: Sequence[int]


AXES = (
    Axis("clients", lambda n: rounds(clients=n), (10, 40, 160), (10, 40, 160, 640, 2560)),
    Axis(
        "records a client", lambda n: rounds(records=n), (25, 100, 400), (25, 100, 400, 1600, 6400)
    ),
    Axis("worlds, one by one", replays, (2, 8, 32), (2, 8, 32, 128, 512)),
    Axis("worlds in one pass", one_pass, (2, 8, 32), (2, 8, 32, 64, 128)),
    Axis(
        "image side",
        lambda n: rounds(clients=2, size=n, spec=ModelSpec("convnet", width=16)),
        (8, 16, 32),
        (8, 16, 32, 64, 128),
    ),
)


def measure_audit(algo: str, overrides: Sequence[str]) -> tuple[float, float]:
    """(CPU seconds, peak MiB) of one audit in a process of its own. Raises RuntimeError if it
    fails."""
    base = [
        f"algo={algo}",
        "preset=smoke",
        "engine=serial",
        "data=fashion_mnist",
        "data.limit=1000",
        "partition.clients=4",
    ]
    changed = {override.split("=")[0] for override in overrides}
    given = [part for part in base if part.split("=")[0] not in changed]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "privdd.audit",
            *given,
            *overrides,
            f"hydra.run.dir={folder}/run",
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[3:])}: exit status {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def growth_power(costs: Sequence[float], step: float = STEP) -> float:
    """The power that a cost grows with above its fixed part, from three sizes, each ``step`` times
    the one before.

    If the cost of size n is a + b n^p, the fixed part a falls out of differences, and
    p = log((c3 - c2) / (c2 - c1)) / log(step).

    Returns:
        The power; NaN if the cost does not grow from each size to the next.
    """
    first_rise = costs[1] - costs[0]
    second_rise = costs[2] - costs[1]
    if min(first_rise, second_rise) <= 0:
        return math.nan
    return math.log(second_rise / first_rise) / math.log(step)


def measure_audits(algo: str, axes: Sequence[str], full: bool) -> None:
    """Print a row for every size of these axes of ``AUDITS``, and a row with both powers."""
    for name in axes:
        setting, small, large = AUDITS[name]
        points: list[tuple[float, float]] = []
        for size in large if full else small:
            overrides = setting.format(size, records=RECORDS_OF_CLIENT * size).split()
            seconds, memory = measure_audit(algo, overrides)
            points.append((seconds, memory))
            print(f"{name:<20} {size:>6} {seconds:>9.3f} {memory:>7.0f}", flush=True)
        time_power = growth_power([seconds for seconds, _ in points[-3:]])
        memory_power = growth_power([memory for _, memory in points[-3:]])
        print(f"{name:<20} {'power':>6} {time_power:>9.2f} {memory_power:>7.2f}", flush=True)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(axis: Axis, size: int, out: Connection) -> None:
    """(CPU seconds of the fastest turn, MiB above the start) of one point, in a process of its
    own."""
    before = peak()
    work = axis.make(size)
    seconds = []
    for _ in range(TURNS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    out.send((min(seconds), peak() - before))


def point(axis: Axis, size: int) -> tuple[float, float]:
    # torch is imported once, and its threads are not running yet
    context = multiprocessing.get_context("fork")
    mine, other = context.Pipe(duplex=False)
    child = context.Process(target=measure, args=(axis, size, other))
    child.start()
    other.close()
    found = mine.recv()
    child.join()
    return found


def draw(path: Path, found: dict[str, list[tuple[int, float, float]]]) -> None:
    """Seconds (logarithmic; dashed: linear growth) above, memory below, one column an axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(found), 5), layout="constrained")
    for column, (name, points) in enumerate(found.items()):
        sizes = [n for n, _, _ in points]
        first = points[0]
        for row, label in enumerate(("CPU seconds", "peak MiB above the start")):
            panel = figure.add_subplot(2, len(found), 1 + column + row * len(found))
            values = [p[1 + row] for p in points]
            panel.semilogx(sizes, values, "o-", color="#1f5a94")
            if row == 0:
                panel.loglog(
                    sizes,
                    [first[1] * n / first[0] for n in sizes],
                    "--",
                    color="#888888",
                    linewidth=1,
                )
                panel.set_yticks(values, [f"{v:.2g}" for v in values], minor=False)
            else:
                panel.set_ylim(0, 1.1 * max(values) + 1)
            panel.set_xlabel(name)
            panel.set_xticks(sizes, [str(n) for n in sizes], minor=False)
            panel.minorticks_off()
            if column == 0:
                panel.set_ylabel(label)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="larger sizes, a few minutes")
    parser.add_argument("--plot", type=Path, help="a PNG to write")
    parser.add_argument("--audits", action="store_true", help="whole audits")
    parser.add_argument("--algo", default="fedavg", help="the method of --audits")
    parser.add_argument(
        "--axes", nargs="+", default=list(AUDITS), choices=list(AUDITS), help="of --audits"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print(hardware())
    print(f"{'what grows':<20} {'size':>6} {'CPU s':>9} {'MiB':>7}  power")
    if given.audits:
        measure_audits(given.algo, given.axes, given.full)
        return
    found: dict[str, list[tuple[int, float, float]]] = {}
    for axis in AXES:
        points = found[axis.name] = [
            (n, *point(axis, n)) for n in (axis.full if given.full else axis.small)
        ]
        power = math.log(points[-1][1] / points[0][1]) / math.log(points[-1][0] / points[0][0])
        for index, (n, seconds, memory) in enumerate(points):
            tail = f"  {power:.2f}" if index == len(points) - 1 else ""
            print(f"{axis.name:<20} {n:>6} {seconds:>9.3f} {memory:>7.0f}{tail}", flush=True)
    if given.plot:
        draw(given.plot, found)
        print(given.plot)


if __name__ == "__main__":
    main()

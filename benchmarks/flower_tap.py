"""What a tap costs: seconds that it takes of a round, for the network of Flower's
quickstart-pytorch and a large one.

    python -m benchmarks.flower_tap [--rounds 2] [--records 4000]

Three clients train one epoch (batches of 32) on 4000 made-up 3 x 32 x 32 records each, as the
quickstart does, in this process, where messages cost nothing: over a network a round takes longer
and the tap does not. Both taps are on, at every client and at the server."""

from __future__ import annotations

import argparse
import copy
import logging
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from attacks.command_line import CommandParser
from privdd.integrations import flower_recorder
from privdd.integrations.flower_recorder import privdd_tap, tapped
from privdd.recording.recording import read_recordings

CLIENTS = 3


def quickstart(width: int = 1) -> nn.Module:
    """Flower's quickstart-pytorch network (width 1: 62 thousand parameters), or a wider one."""
    return nn.Sequential(
        nn.Conv2d(3, 6 * width, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6 * width, 16 * width, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400 * width, 120 * width),
        nn.ReLU(),
        nn.Linear(120 * width, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


class Clock:
    """Seconds spent in the taps' own work."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*args, **more)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


class Here:
    """A grid in this process."""

    def __init__(self, app: ClientApp) -> None:
        self.app = app
        self.contexts = {
            n: Context(1, n, {"partition-id": n}, RecordDict(), {}) for n in range(1, CLIENTS + 1)
        }
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 0
        TaskIdentity.task_id = 1

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        replies = []
        for message in messages:
            replies.append(
                self.app(copy.copy(message), self.contexts[message.metadata.dst_node_id])
            )
            replies[-1].metadata._src_node_id = message.metadata.dst_node_id
        return replies


def app_of(width: int, count: int, tap: Any) -> ClientApp:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, 32, 32, generator=generator)
    y = torch.randint(10, (count,), generator=generator)
    app = ClientApp(mods=[tap])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = quickstart(width)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for index in range(0, count, 32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                model(x[index : index + 32]), y[index : index + 32]
            ).backward()
            optimizer.step()
        told = MetricRecord({"num-examples": count})
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told}),
            reply_to=message,
        )

    return app


def measured(width: int, rounds: int, count: int, place: Path) -> tuple[int, float, float]:
    """(parameters, seconds of a round without the taps' own, seconds of the taps in it)."""
    clock = Clock()
    recorder = flower_recorder.MessageRecorder
    original = recorder.run_safely
    recorder.run_safely = clock.around(original)  # type: ignore[method-assign]
    try:
        strategy = tapped(FedAvg(fraction_evaluate=0.0), place / "run")
        grid = Here(app_of(width, count, privdd_tap(place / "run")))
        first = quickstart(width)
        began = time.perf_counter()
        strategy.start(grid=grid, initial_arrays=ArrayRecord(first.state_dict()), num_rounds=rounds)  # type: ignore[arg-type]
        whole = time.perf_counter() - began
    finally:
        recorder.run_safely = original  # type: ignore[method-assign]
    if len(read_recordings(place / "run")) != CLIENTS + 1:
        raise RuntimeError("not everything was recorded")
    return (
        sum(p.numel() for p in first.parameters()),
        (whole - clock.seconds) / rounds,
        clock.seconds / rounds,
    )


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--records", type=int, default=4000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print("| parameters | round | taps | share |\n|---|---|---|---|")
    for width in (1, 4):
        with tempfile.TemporaryDirectory() as name:
            parameters, rest, taps = measured(width, given.rounds, given.records, Path(name))
        print(
            f"| {parameters:,} | {rest:.2f} s | {taps:.3f} s | "
            f"{100 * taps / (rest + taps):.1f} % |",
            flush=True,
        )


if __name__ == "__main__":
    main()

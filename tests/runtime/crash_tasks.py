"""Tasks that kill their own worker, importable by every worker."""

from __future__ import annotations

import functools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from privdd.core.rng import Keys

PATIENCE = 300  # seconds that a worker may need to start on a busy machine
LOADED_BY = os.getpid()


@dataclass(frozen=True)
class Deadly:
    """Kills its worker ``times`` times (counted by marker files), then returns a draw of its own
    stream."""

    index: int
    marker: str
    times: int = 0

    def run(self) -> torch.Tensor:
        for life in range(self.times):
            mark = Path(f"{self.marker}.{self.index}.{life}")
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(8, generator=Keys(3).fold("task", self.index).torch())


def run(task: Deadly) -> torch.Tensor:
    return task.run()


def refuse(task: Deadly) -> torch.Tensor:
    raise ValueError(f"task {task.index}: refused")


def thread_count(task: Deadly) -> int:
    return torch.get_num_threads()


def wait_for(path: Path) -> None:
    """Raises TimeoutError after ``PATIENCE``."""
    until = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{path} did not come")
        time.sleep(0.02)


def meet(task: Deadly) -> int:
    """The worker's id; tasks 0 and 1 wait for each other, so that two workers work."""
    Path(f"{task.marker}.{task.index}").touch()
    wait_for(Path(f"{task.marker}.{1 - task.index}"))
    return os.getpid()


def placed(task: Deadly) -> tuple[str, torch.Tensor]:
    """(the Ray node that ran the task, the draw); the first two tasks wait for each other, so that
    two nodes work."""
    import ray

    Path(f"{task.marker}.{task.index}").touch()
    wait_for(Path(f"{task.marker}.{1 - task.index % 2}"))
    time.sleep(0.1)
    return ray.get_runtime_context().get_node_id(), task.run()


@dataclass(frozen=True)
class Table:
    """Shared by tasks; its stamp is another each time that it is computed."""

    numbers: torch.Tensor

    @functools.cached_property
    def stamp(self) -> int:
        return time.perf_counter_ns()


def read_table(task: tuple[Table, int]) -> tuple[int, int, float]:
    """(the worker's number, the table's stamp, the sum of its numbers)."""
    table, _ = task
    return os.getpid(), table.stamp, float(table.numbers.sum())


KEPT: list[torch.Tensor] = []


def grow(task: Deadly) -> int:
    """Keeps 100 MB more of memory, up to 500, slowly enough for a check of memory between two
    tasks."""
    if len(KEPT) < 5:
        KEPT.append(torch.ones(25_000_000))
    time.sleep(0.4)
    return os.getpid()


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def origin(task: int) -> tuple[int, int, bool]:
    """The worker's number, its parent's, and whether the fork server had loaded this file for
    it."""
    return os.getpid(), os.getppid(), os.getpid() != LOADED_BY

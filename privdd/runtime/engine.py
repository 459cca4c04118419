"""Where independent tasks run: one interface to this process, joblib's worker processes or Ray.

Every task carries its own random streams, so results do not depend on which worker ran it, or on how often it was
run again after a worker died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from privdd.core.group_settings import check_engine
from privdd.runtime.startup import usable_cores
from privdd.runtime.workers import torch_threads

T = TypeVar("T")
R = TypeVar("R")
IN_THIS_PROCESS = ("auto", "serial")  # kinds of engine


@dataclass(frozen=True)
class Engine:
    """kind: auto | serial | processes | ray; workers: 0 = one per core; threads: torch threads per task.

    auto: serial, until ``privdd.auditing.cost_estimate.choose_engine`` has put another one in its place.
    Same seed and same ``threads`` give the same bits on every kind. retries: how often a task whose
    worker died is tried again.
    """

    clients_remember: ClassVar[bool] = False  # here client memories travel with the tasks; real clients keep their own

    kind: str = "serial"
    workers: int = 0
    threads: int = 1
    address: str | None = None
    retries: int = 2

    def __post_init__(self) -> None:
        check_engine(self)

    @property
    def size(self) -> int:
        return 1 if self.kind in IN_THIS_PROCESS else self.workers or usable_cores()

    def map(self, fn: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """fn over items, results in the order of the items as they become available."""
        work: Sequence[T] = list(items)
        if self.kind in IN_THIS_PROCESS or len(work) < 2:
            for item in work:
                with torch_threads(self.threads):
                    result = fn(item)
                yield result
        elif self.kind == "processes":
            from privdd.runtime.workers import process_map

            yield from process_map(fn, work, workers=self.size, threads=self.threads, retries=self.retries)
        else:
            from privdd.runtime.ray import ray_map

            yield from ray_map(
                fn, work, workers=self.workers, threads=self.threads, retries=self.retries, address=self.address
            )


def engine_in_words(engine: Engine) -> str:
    """ "one process", "2 processes" or "2 Ray workers"."""
    if engine.kind in IN_THIS_PROCESS:
        return "one process"
    one, many = ("Ray worker", "Ray workers") if engine.kind == "ray" else ("process", "processes")
    return f"{engine.size} {one if engine.size == 1 else many}"


def describe_engine(engine: Engine) -> dict[str, Any]:
    """For the manifest."""
    return {"kind": engine.kind, "workers": engine.size, "threads": engine.threads}

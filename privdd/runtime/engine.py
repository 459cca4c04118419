"""Where independent tasks run: one interface to this process, to worker processes of this machine,
or to a Ray cluster.

Every task carries its own random streams, so results do not depend on which worker ran it, or on
how often it was run again after a worker died.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from privdd.runtime.compute_environment import current_environment
from privdd.runtime.engine_kinds import SETTINGS_BY_KIND
from privdd.runtime.process_pool import process_map
from privdd.runtime.ray_pool import count_ray_workers, ray_map, worker_environments
from privdd.runtime.startup import usable_cores
from privdd.runtime.task_messages import torch_threads as torch_threads

T = TypeVar("T")
R = TypeVar("R")
IN_THIS_PROCESS = ("auto", "serial")  # kinds of engine
MOST_WORKERS = 1024  # torch dies of tens of thousands of threads


def check_engine(settings: Engine) -> None:
    """Raises ValueError for the first setting that is out of its range."""
    if settings.kind not in SETTINGS_BY_KIND:
        raise ValueError(
            f"engine.kind={settings.kind!r}: allowed are {', '.join(SETTINGS_BY_KIND)}"
        )
    for name, least in (("workers", 0), ("threads", 1), ("retries", 0)):
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"engine.{name}={value!r}: an integer of at least {least} is needed")
        if value > MOST_WORKERS:
            raise ValueError(f"engine.{name}={value}: at most {MOST_WORKERS}")
    if not isinstance(settings.mixed, bool):
        raise ValueError(f"engine.mixed={settings.mixed!r}: allowed are true, false")
    seconds = settings.timeout
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 1 <= seconds < math.inf
    ):
        raise ValueError(f"engine.timeout={seconds!r}: a number of seconds, at least 1, is needed")


@dataclass(frozen=True)
class Engine:
    """Where tasks run. The same seed and the same ``threads`` give the same bits on every kind.

    Attributes:
        kind: auto, serial, processes or ray. auto is serial until
            ``privdd.auditing.cost_estimate.choose_engine`` has put another one in its place.
        workers: Processes; 0 is one for each core.
        threads: Of torch, for each task.
        address: HOST:PORT of a Ray cluster; None is one of this machine.
        retries: How often a task whose worker died is tried again.
        mixed: Whether Ray's workers may compute other bits.
        timeout: Seconds without an answer of any of Ray's workers after which the run ends.
    """

    # here client memories travel with the tasks; real clients keep their own
    clients_remember: ClassVar[bool] = False

    kind: str = "serial"
    workers: int = 0
    threads: int = 1
    address: str | None = None
    retries: int = 2
    mixed: bool = False
    timeout: float = 3600.0

    def __post_init__(self) -> None:
        check_engine(self)

    @property
    def size(self) -> int:
        """Workers. A Ray cluster at an address is asked, and its answer is what it has now. Raises
        ValueError where none answers."""
        if self.kind in IN_THIS_PROCESS:
            return 1
        if self.kind == "ray":
            return count_ray_workers(self.address, self.workers)
        return self.workers or usable_cores()

    def map(self, fn: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """fn over items, results in the order of the items as they become available."""
        work: Sequence[T] = list(items)
        tried: dict[str, Any] = {"threads": self.threads, "retries": self.retries}
        if self.kind in IN_THIS_PROCESS or len(work) < 2:
            for item in work:
                with torch_threads(self.threads):
                    result = fn(item)
                yield result
        elif self.kind == "processes":
            yield from process_map(fn, work, workers=self.size, **tried)
        else:
            where: dict[str, Any] = {
                "address": self.address,
                "mixed": self.mixed,
                "timeout": self.timeout,
            }
            yield from ray_map(fn, work, workers=self.workers, **where, **tried)


def engine_in_words(engine: Engine) -> str:
    """ "one process", "2 processes" or "2 Ray workers"."""
    if engine.kind in IN_THIS_PROCESS:
        return "one process"
    if engine.kind == "ray":
        worker = "Ray worker"
        many = "Ray workers"
    else:
        worker = "process"
        many = "processes"
    size = engine.size
    return f"{size} {worker if size == 1 else many}"


def describe_engine(engine: Engine) -> dict[str, Any]:
    """For the manifest. Of Ray also what its workers computed with, and whether they were allowed
    to differ."""
    facts: dict[str, Any] = {"kind": engine.kind, "workers": engine.size, "threads": engine.threads}
    if engine.kind == "ray":
        facts["mixed"] = engine.mixed
        facts["environments"] = [environment.to_json() for environment in worker_environments()]
    return facts


def describe_mixed_workers(engine: Engine) -> str:
    """One line for the page where a worker was unlike this process, else ""."""
    if engine.kind == "ray":
        environments = worker_environments()
    else:
        environments = []
    if all(each == current_environment() for each in environments):
        return ""
    environment = current_environment()
    differences = "; ".join(
        each.describe_difference(environment) for each in environments if each != environment
    )
    return f"unlike workers (engine.mixed=true), so other bits are possible: {differences}"

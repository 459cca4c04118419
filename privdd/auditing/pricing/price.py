"""A price: what a run takes, by stage, as a table of plain text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from privdd.auditing.pricing.needs import spelt
from privdd.runtime.engine import Engine
from privdd.runtime.preloaded import can_fork
from privdd.runtime.progress import spell

LOADING = "workers' start"
WORKER = 4.0  # CPU seconds that a worker process takes to load everything and run it for the first time: measured
LOADED, FORKED = 3.5, 0.5  # ... that a process takes to load it for all, and a worker that is forked from it then
ON_WORKERS = ("train", "worlds", "federations", "attacks", "guarantee tests", LOADING)


def loading(engine: Engine, device: str) -> dict[str, float]:
    """CPU seconds that workers take to start, as a stage; {} where there are none. device: cpu or cuda."""
    if engine.kind == "serial":
        return {}
    forked = engine.kind == "processes" and can_fork(device)
    return {LOADING: LOADED + FORKED * engine.size if forked else WORKER * engine.size}


@dataclass(frozen=True)
class Price:
    """stages: CPU seconds of each; longest: of the longest single attack, which no number of workers shortens;
    workers of the engine; memory, disk: bytes. source: where it comes from, in words; least: it takes more than this."""

    stages: Mapping[str, float]
    longest: float
    workers: int
    memory: int
    disk: int
    source: str = "from a short probe on this machine"
    least: bool = False

    @property
    def cpu(self) -> float:
        """CPU seconds in all."""
        return sum(self.stages.values())

    @property
    def wall(self) -> float:
        """Seconds on the engine's workers, each with a core of its own."""
        shared = sum(self.stages.get(name, 0.0) for name in ON_WORKERS)
        attacks = max(self.longest - self.stages.get("attacks", 0.0) / self.workers, 0.0)
        return self.cpu - shared + shared / self.workers + attacks

    def lines(self) -> list[str]:
        """One for each stage, then the totals."""
        rows = [f"  {name:<16}{value:>8.1f} CPU s" for name, value in self.stages.items()]
        word = "at least" if self.least else "about"
        total = f"{word} {spell(self.wall)} on {self.workers} worker{'s' * (self.workers > 1)}, {self.cpu:.0f} CPU s"
        return [*rows, f"{total}; memory {spelt(self.memory)}, disk {spelt(self.disk)}"]

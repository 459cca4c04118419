"""Progress with the time left: a live bar on a terminal, a plain line every few seconds
elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

HEARTBEAT = 15.0  # seconds between lines where there is no terminal


def format_seconds(seconds: float) -> str:
    """5 -> "5 s", 75 -> "1 min 15 s", 4000 -> "1 h 06 min"."""
    total = max(0, int(seconds + 0.5))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


@dataclass
class ProgressBar:
    """One stage. ``advance`` may carry a short note (accuracy, residual).

    work: of all tasks, in any unit, by which the time left is told; None: all tasks cost alike.
    """

    label: str
    total: int
    out: TextIO
    live: Progress | None = None
    work: float | None = None
    done: int = 0
    done_work: float = 0.0
    began: float = field(default_factory=time.monotonic)
    spoke: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._task: TaskID | None = None
        if self.live:
            self._task = self.live.add_task(
                self.label, total=self.total_work, note="", count=f"0/{self.total}"
            )

    @property
    def total_work(self) -> float:
        if self.work is None:
            return self.total
        return self.work

    def advance(self, note: str = "", by: int = 1, work: float | None = None) -> None:
        """``by`` tasks are done, of so much work together; None: of one a task."""
        self.done += by
        step = float(by)
        if work is not None:
            step = work
        self.done_work += step
        if self.live is not None and self._task is not None:
            count = f"{self.done}/{self.total}"
            self.live.update(self._task, advance=step, note=note, count=count)
            return
        now = time.monotonic()
        if now - self.spoke >= HEARTBEAT or self.done >= self.total:
            self.spoke = now
            left = max(0.0, self.total_work - self.done_work)
            remaining = (now - self.began) / max(1.0, self.done_work) * left
            tail = f", {note}" if note else ""
            if self.done >= self.total:
                ending = f"done in {format_seconds(now - self.began)}"
            else:
                ending = f"about {format_seconds(remaining)} left"
            print(
                f"{self.label}: {self.done}/{self.total}, {ending}{tail}", file=self.out, flush=True
            )


@contextmanager
def show_progress(
    label: str, total: int, out: TextIO | None = None, work: float | None = None
) -> Iterator[ProgressBar]:
    """Progress of one stage on stderr (results go to stdout). work: as of ``ProgressBar``."""
    stream = out or sys.stderr
    if not stream.isatty():
        yield ProgressBar(label, total, stream, work=work)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(file=stream), transient=False) as live:
        yield ProgressBar(label, total, stream, live, work)

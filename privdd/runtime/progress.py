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
    """One stage. ``advance`` may carry a short note (accuracy, residual)."""

    label: str
    total: int
    out: TextIO
    live: Progress | None = None
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    spoke: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._task: TaskID | None = None
        if self.live:
            self._task = self.live.add_task(self.label, total=self.total, note="")

    def advance(self, note: str = "", by: int = 1) -> None:
        self.done += by
        if self.live is not None and self._task is not None:
            self.live.update(self._task, advance=by, note=note)
            return
        now = time.monotonic()
        if now - self.spoke >= HEARTBEAT or self.done >= self.total:
            self.spoke = now
            remaining = (now - self.began) / max(1, self.done) * max(0, self.total - self.done)
            tail = f", {note}" if note else ""
            if self.done >= self.total:
                ending = f"done in {format_seconds(now - self.began)}"
            else:
                ending = f"about {format_seconds(remaining)} left"
            print(
                f"{self.label}: {self.done}/{self.total}, {ending}{tail}", file=self.out, flush=True
            )


@contextmanager
def show_progress(label: str, total: int, out: TextIO | None = None) -> Iterator[ProgressBar]:
    """Progress of one stage on stderr (results go to stdout)."""
    stream = out or sys.stderr
    if not stream.isatty():
        yield ProgressBar(label, total, stream)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(file=stream), transient=False) as live:
        yield ProgressBar(label, total, stream, live)

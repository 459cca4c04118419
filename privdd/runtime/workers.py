"""Shared by engine and workers: torch's thread count, and the error for workers that keep dying."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


class LostWorkers(RuntimeError):
    """A task's worker died every time it was tried."""

    def __init__(self, times: int) -> None:
        super().__init__(
            f"the worker of a task died {times} times in a row (out of memory?); use fewer engine.workers, "
            "or a smaller model or batch; finished work is kept"
        )


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Set torch's thread count, and restore it on the way out."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

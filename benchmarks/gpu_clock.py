"""Seconds and memory of work on a device, and where the host spends its time or waits while a GPU
works."""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parents[1]
ROWS = 12
WAITS = (
    "Memcpy",
    "Synchronize",
    "cudaLaunchKernel",
    "cudaMalloc",
    "_local_scalar_dense",
    "aten::nonzero",
)
Run = Callable[[], object]


@dataclass(frozen=True)
class Taken:
    """seconds: wall clock, until the device is done; peak: GiB that torch held on the GPU at most,
    0.0 on the CPU."""

    seconds: float
    peak: float


def timed(device: str, run: Run) -> Taken:
    gpu = device == "cuda"
    if gpu:
        torch.cuda.empty_cache()  # what the stage before left behind
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    if gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return Taken(seconds, torch.cuda.max_memory_allocated() / 2**30 if gpu else 0.0)


def profiled(run: Run, steps: int) -> list[str]:
    """Lines: what took the host's and the GPU's time, calls that may wait, and lines of code that
    did; all a step."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_initialized():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as found:
        run()
    events = list(found.key_averages())
    kernels = [e for e in events if e.device_type != DeviceType.CPU and not e.is_user_annotation]
    # which hold the time of the kernels that they started
    calls = [e for e in events if e.device_type == DeviceType.CPU]
    lines = []
    for title, field, of in (
        ("host", "self_cpu_time_total", calls),
        ("GPU", "self_device_time_total", kernels),
    ):
        lines.append(
            f"  {title}, ms a step: {sum(getattr(e, field) for e in of) / 1e3 / steps:.3f}"
        )
        lines += [
            _row(e, field, steps) for e in sorted(calls, key=lambda e: -getattr(e, field))[:ROWS]
        ]
    counts = {e.key: e.count / steps for e in events if any(word in e.key for word in WAITS)}
    lines.append(
        "  calls a step: "
        + (", ".join(f"{key} {count:.2f}" for key, count in counts.items()) or "none")
    )
    waited = waits(run).most_common(ROWS) if torch.cuda.is_initialized() else []
    return [
        *lines,
        *(f"  host waits {count / steps:7.2f} a step: {place}" for place, count in waited),
    ]


def _row(event: Any, field: str, steps: int) -> str:
    return (
        f"    {getattr(event, field) / 1e3 / steps:9.3f}  {event.count / steps:9.2f} calls  "
        f"{event.key[:80]}"
    )


def waits(run: Run) -> Counter[str]:
    """Line of ours -> how often torch said that the host waited there for the GPU."""
    found: Counter[str] = Counter()

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchronizing" in str(message):
            found[_place()] += 1

    with _telling(), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        run()
    return found


@contextmanager
def _telling() -> Iterator[None]:
    """torch warns of every call that makes the host wait."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _place() -> str:
    """The innermost line of the packages that led here; "?" in a thread of torch's own."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith((f"{ROOT}/privdd/", f"{ROOT}/attacks/", f"{ROOT}/benchmarks/")) and Path(
            file
        ).name not in ("gpu_clock.py", "test_gpu.py"):
            return f"{Path(file).relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"

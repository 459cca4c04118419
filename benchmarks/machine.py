"""What a figure was measured on, for the first lines of a benchmark's output."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import torch


def hardware() -> str:
    """Cores, CPU, GPU where there is one, torch, load of the last minute and date, in one line."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    load = os.getloadavg()[0]
    gpu = f"{torch.cuda.get_device_name(0)}, " if torch.cuda.is_available() else ""
    return (
        f"{os.cpu_count()} cores ({names[0] if names else 'unknown CPU'}), {gpu}torch "
        f"{torch.__version__}, "
        f"{torch.get_num_threads()} thread, load {load:.1f}, {date.today()}"
    )

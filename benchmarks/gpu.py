"""What a GPU gives, against the CPU of the same machine in the same run.

    python -m benchmarks.gpu [--stages feddm,inversion] [--json rows.json] [--profile]
    python -m benchmarks.gpu --dry [--device cpu]      tiny sizes, here: to see that every stage
    runs

CPU: one process with torch threads on all cores (``--threads``). Both sides are warmed up, and a
    CPU side that would take more than ``--seconds`` takes fewer steps. The ratio is of the times of
    a step, above 1 where the GPU is
faster, fixed costs of a round included; in brackets how many steps were timed. The GPU computes as
in an audit: the same bits each time, float32 in full; with --fastest as torch sets it, which has
convolutions in TF32.

feddm: one client, ConvNet of width 128, 10 classes of 500 records, batch 256, ipc 10. fedavg:
    ResNet-18, batch 64.
dp_sgd: small CNN, expected batch 256. fedfed: phase A, batch 32. shadows: groups of small CNNs as
    one wide network (processes on the CPU: benchmarks.shadows). worlds: replays of the FedDM client
    in one pass. inversion: Inverting
Gradients on eight gradients of single images, ConvNet of width 64.
--profile: of the GPU's side, instead of times of both: what takes the time, calls a step, lines
where the host waits."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from attacks.command_line import CommandParser
from benchmarks.gpu_audit_stages import AUDIT
from benchmarks.gpu_clock import Taken, profiled, timed
from benchmarks.gpu_stages import FEDERATED, Stage
from benchmarks.machine import hardware
from privdd.core.device import deterministic_kernels
from privdd.runtime.engine import torch_threads

STAGES = {stage.name: stage for stage in (*FEDERATED, *AUDIT)}
DRY = 2  # steps with --dry


def side(
    stage: Stage, device: str, steps: int, options: argparse.Namespace, limit: float | None = None
) -> tuple[Taken, int]:
    """(what the steps took when warm, how many): fewer where they would take more than ``limit``
    seconds."""
    with deterministic_kernels("cpu" if options.fastest else device):
        timed(device, stage.work(device, 1, options.dry))
        if limit is not None:
            # without imports and first calls
            one = timed(device, stage.work(device, 1, options.dry))
            steps = min(steps, max(stage.least, int(limit / one.seconds)))
        return timed(device, stage.work(device, steps, options.dry)), steps


def compared(stage: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a stage."""
    cpu, few = side(stage, "cpu", DRY if options.dry else stage.cpu, options, options.seconds)
    gpu, many = side(stage, options.device, DRY if options.dry else stage.gpu, options)
    return {
        "stage": stage.name,
        "unit": stage.unit,
        "cpu": stage.figure(cpu.seconds, few, options.dry),
        "gpu": stage.figure(gpu.seconds, many, options.dry),
        "ratio": (cpu.seconds / few) / (gpu.seconds / many),
        "peak_gib": gpu.peak,
        "cpu_steps": few,
        "gpu_steps": many,
    }


def shown(row: dict[str, Any], device: str) -> str:
    where = "GPU" if device == "cuda" else "CPU again"
    return (
        f"{row['stage']:<10} {row['unit']:<22} CPU {row['cpu']:9.2f} ({row['cpu_steps']}) "
        f" {where} {row['gpu']:9.2f} "
        f"({row['gpu_steps']})  {row['ratio']:7.2f} times  peak {row['peak_gib']:.2f} GiB"
    )


def profile_of(stage: Stage, options: argparse.Namespace) -> str:
    steps = DRY if options.dry else stage.profile
    with deterministic_kernels("cpu" if options.fastest else options.device):
        stage.work(options.device, 1, options.dry)()
        found = profiled(stage.work(options.device, steps, options.dry), steps)
    return "\n".join([f"{stage.name}: {steps} steps", *found])


def run(stages: list[Stage], options: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """(rows, how many stages failed): a failure is told in one line, and the rest goes on."""
    rows = []
    failed = 0
    for stage in stages:
        try:
            if options.profile:
                print(profile_of(stage, options), flush=True)
                continue
            rows.append(compared(stage, options))
            print(shown(rows[-1], options.device), flush=True)
        except Exception as error:
            failed += 1
            print(
                f"{stage.name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
                flush=True,
            )
    return rows, failed


def chosen(names: str) -> list[Stage]:
    unknown = sorted({*names.split(",")} - STAGES.keys())
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: allowed are {', '.join(STAGES)}")
    return [STAGES[name] for name in names.split(",")]


def main(given: list[str] | None = None) -> int:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stages", type=chosen, default=list(STAGES.values()), help=f"of {','.join(STAGES)}"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: both sides on the CPU"
    )
    parser.add_argument("--dry", action="store_true", help="tiny networks and batches, two steps")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a CPU side, about")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument(
        "--fastest", action="store_true", help="torch's fastest kernels, TF32 in convolutions"
    )
    options = parser.parse_args(given)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "--device=cuda: no GPU here (torch.cuda.is_available() is False); --device "
            "cpu tries both sides on the CPU"
        )
        return 2
    with torch_threads(options.threads):
        on = hardware()
        print(on, flush=True)
        began = time.perf_counter()
        rows, failed = run(options.stages, options)
    print(
        f"{len(options.stages) - failed} of {len(options.stages)} stages in "
        f"{time.perf_counter() - began:.0f} s"
    )
    if options.json:
        options.json.write_text(
            json.dumps(
                {"hardware": on, "device": options.device, "dry": options.dry, "rows": rows},
                indent=1,
            )
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Every profile's audit at one preset, one after the other: seconds, memory, exit status, verdict.

    python -m benchmarks.presets [--preset smoke|default] [--profiles "fedavg,fedavg
    privacy=client"] [--keep DIR] [override ...]

A profile is a method with its own privacy layer, or with another that it takes (``LAYERED``). Runs
``python -m privdd.audit algo=X preset=P`` in a folder of its own, dropped afterwards unless kept
below DIR, and prints a Markdown table. CPU seconds are those of the whole process tree, peak memory
is the largest sum of resident memory over it; both are sampled five times a second. A row above the
preset's limit (smoke 60 s, default 300 s of wall) or with an exit status of 1 is flagged; the exit
status is 1 where an audit did not end. The ``longest`` stage and its seconds come from the run's
own findings.json."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from attacks.command_line import CommandParser
from benchmarks.machine import hardware
from privdd.cli.compose import group_choices
from privdd.runtime.files import DamagedRun, read_json

LIMITS = {"smoke": 60.0, "default": 300.0}  # seconds on two cores
ROOT = Path(__file__).resolve().parents[1]
LAYERED = (  # privacy layers and kinds of trust that no method has by itself
    *(f"{algo} privacy=dpsgd" for algo in ("fedavg", "fedprox", "scaffold", "fednova", "fedadam")),
    *(f"{algo} privacy=client" for algo in ("fedavg", "fednova", "fedavgm")),
    "fedavg privacy=client trust=secagg",
    "fedavg_adaptive trust=secagg",
    "dp_head trust=secagg",
    "feddm privacy=clipped_gradient algo.start=noise",
    "feddm privacy=aggregate_clip algo.start=noise",
    "fedfed privacy=gaussian_features",
    "fedfed privacy=none",
)
HEAD = "| profile | wall s | CPU s | peak MiB | exit | verdict | longest stage | |"


@dataclass(frozen=True)
class Spent:
    """What one command took. wall, cpu: seconds; peak: MiB; stage: the longest part of the
    audit."""

    profile: str
    wall: float
    cpu: float
    peak: float
    status: int
    verdict: str
    stage: str

    def row(self, limit: float) -> str:
        flags = [f"above {limit:.0f} s"] * (self.wall > limit) + ["failed"] * (not self.ended)
        return (
            f"| {self.profile} | {self.wall:.1f} | {self.cpu:.1f} | {self.peak:.0f} | "
            f"{self.status} | {self.verdict} "
            f"| {self.stage} | {', '.join(flags)} |"
        )

    @property
    def ended(self) -> bool:
        return self.status in (0, 2)


def profiles() -> list[str]:
    """Every method that ships with the package, by its yaml, then ``LAYERED``."""
    return [*group_choices("algo", [str(ROOT / "configs")]), *LAYERED]


def taken(pid: int) -> dict[int, tuple[int, float]]:
    """Of a process and all below it: number -> (bytes of memory, CPU seconds so far); those that
    ended are not there."""
    found = {}
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in [top, *top.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found[process.pid] = process.memory_info().rss, times.user + times.system
    return found


class Watch(threading.Thread):
    """Samples memory and CPU time of a process tree until told to stop; ends the tree after
    ``timeout`` s.

    CPU seconds are each process's last ones: what a process waits for its own children tells
    nothing of workers that were forked from another one, which nobody waits for.
    """

    def __init__(self, pid: int, timeout: float) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.done = threading.Event()
        self.due = time.monotonic() + timeout
        self.peak = 0
        self.seconds = dict[int, float]()

    def run(self) -> None:
        while not self.done.wait(0.2):
            now = taken(self.pid)
            self.peak = max(self.peak, sum(memory for memory, _ in now.values()))
            self.seconds |= {pid: cpu for pid, (_, cpu) in now.items()}
            if time.monotonic() > self.due:
                os.killpg(self.pid, 9)
                return


def measure_audit(
    profile: str, preset: str, overrides: Sequence[str], timeout: float, keep: Path | None
) -> Spent:
    """One audit in a folder of its own, below ``keep`` where given."""
    algo, *layer = profile.split()
    with tempfile.TemporaryDirectory() as name:
        place = (keep / "_".join([preset, *profile.split()])).resolve() if keep else Path(name)
        place.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "privdd.audit",
            f"algo={algo}",
            *layer,
            f"preset={preset}",
            f"hydra.run.dir={place / 'run'}",
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        with (place / "log").open("wb") as log:
            began = time.monotonic()
            process = subprocess.Popen(
                [*command, *overrides],
                cwd=place,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            watch = Watch(process.pid, timeout)
            watch.start()
            _, status = os.waitpid(process.pid, 0)
            wall = time.monotonic() - began
        watch.done.set()
        watch.join()
        code = process.returncode = os.waitstatus_to_exitcode(status)
        if code not in (0, 2):
            print((place / "log").read_text(errors="replace")[-800:], file=sys.stderr)
        verdict, stage = result(place / "run" / "findings.json")
        return Spent(
            profile, wall, sum(watch.seconds.values()), watch.peak / 2**20, code, verdict, stage
        )


def result(file: Path) -> tuple[str, str]:
    """Verdict and longest stage of a finished run, dashes where there is none."""
    try:
        found = read_json(file)
    except DamagedRun:
        return "-", "-"
    parts = {name: value for name, value in found["run"]["seconds"].items() if name != "total"}
    longest = max(parts, key=lambda name: parts[name])
    return found["verdict"], f"{longest} {parts[longest]:.0f} s"


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=sorted(LIMITS), default="smoke")
    parser.add_argument("--profiles", default="", help="a,b privacy=dpsgd,c (default: all)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one profile")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the runs, which are dropped otherwise"
    )
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    chosen = given.profiles.split(",") if given.profiles else profiles()
    known = {profile.split()[0] for profile in profiles()}
    if unknown := sorted({profile.partition(" ")[0] for profile in chosen} - known):
        parser.error(f"--profiles {','.join(unknown)}: known are {', '.join(sorted(known))}")
    torch.set_num_threads(1)
    limit = LIMITS[given.preset]
    rows = []
    print(
        f"preset={given.preset}{''.join(f' {o}' for o in given.overrides)}, "
        f"{hardware()}\n\n{HEAD}\n|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    for profile in chosen:
        rows.append(
            measure_audit(profile, given.preset, given.overrides, given.timeout, given.keep)
        )
        print(rows[-1].row(limit), flush=True)
    flagged = sum(spent.wall > limit or not spent.ended for spent in rows)
    print(
        f"| total of {len(rows)} | {sum(r.wall for r in rows):.1f} | "
        f"{sum(r.cpu for r in rows):.1f} "
        f"| {max(r.peak for r in rows):.0f} | | | | {flagged} flagged |"
    )
    sys.exit(0 if all(spent.ended for spent in rows) else 1)


if __name__ == "__main__":
    main()

"""What a run needs at least, from its settings alone; one that cannot fit is refused before anything is computed."""

from __future__ import annotations

import math
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from attacks.types import IMAGES, Surface
from privdd.auditing.record_gradients import AT_ONCE, HELD
from privdd.core.errors import BadConfig
from privdd.core.types import Received
from privdd.federated.experiment import Experiment
from privdd.federated.kept_rounds import KEPT
from privdd.federated.simulation import Plan
from privdd.federated.trust import SUM
from privdd.runtime.engine import Engine

BYTES = 4  # of a number
GROUND = 400 * 2**20  # bytes of a process that has imported everything: measured
MEMINFO = Path("/proc/meminfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Needs:
    """Bytes, at least. disk: of the artifacts that are kept; memory: of the largest parts that are held at once."""

    disk: int
    memory: int


def needs(experiment: Experiment) -> Needs:
    """The least that a run of ``experiment`` takes."""
    return Needs(_artifacts(experiment), _memory(experiment))


def _artifacts(experiment: Experiment) -> int:
    plan, capture = experiment.plan, experiment.capture
    kept = {s for s in plan.method.uploads.values() if capture.surfaces == "all" or s in capture.surfaces}
    each = BYTES * (_model(experiment) * (Surface.UPDATE in kept) + _images(experiment) * bool(kept & IMAGES))
    sent = sum(
        capture.wants(plan, t, Received(client, t, {}), each)
        for t in range(plan.method.rounds)
        if plan.method.phase(t) == "train"
        for client in handed_over(plan, t)
    )
    return each * sent


def handed_over(plan: Plan, round: int) -> list[int]:
    """Whose uploads the server is handed in a round: every client's that takes part, or their sum's alone."""
    there = plan.participants(round)
    return [SUM] if plan.trust.summed and there else there


def _memory(experiment: Experiment) -> int:
    """The program, in each worker process too, all clients' records, the kept rounds of the audited client, and as many
    gradients as are held."""
    plan = experiment.plan
    model = _model(experiment)
    own = GROUND + BYTES * math.prod(plan.problem.shape) * sum(len(s.train) for s in experiment.shards)
    own += BYTES * model * 2 * min(KEPT, plan.method.rounds) + processes(experiment.engine) * GROUND
    if experiment.auditing is None or Surface.UPDATE not in plan.method.uploads.values():
        return own
    audited = min(experiment.audit.records, len(experiment.shards[plan.victim].train))
    gradients = BYTES * model * audited
    gradients = gradients if gradients <= HELD else max(2 * AT_ONCE, BYTES * model)  # a block, and its parts
    return own + gradients * (1 + processes(experiment.engine))


def processes(engine: Engine) -> int:
    """Worker processes on this machine."""
    return engine.size if engine.kind == "processes" else 0


def _model(experiment: Experiment) -> int:
    """Numbers in the classifier that travels."""
    model = experiment.plan.method.classifier(experiment.plan.problem)
    return 0 if model is None else sum(t.numel() for t in model.state_dict().values())


def _images(experiment: Experiment) -> int:
    """Numbers in one client's synthetic images."""
    plan = experiment.plan
    return plan.method.images_per_class() * plan.problem.classes * math.prod(plan.problem.shape)


def check_fits(experiment: Experiment, folder: Path, *, force: bool) -> None:
    """Raises BadConfig, one line, where disk or memory cannot hold the run; nothing where ``force``."""
    if force:
        return
    least, disk, memory = needs(experiment), free_disk(folder), free_memory()
    if least.disk > disk:
        raise BadConfig(
            f"capture: what clients send takes {spelt(least.disk)} at least, and {spelt(disk)} are free at {folder}; "
            "capture.clients=victim keeps what attacks read; resources.force=true runs anyway"
        )
    if experiment.engine.kind != "ray" and memory is not None and least.memory > memory:
        raise BadConfig(
            f"memory: this run takes {spelt(least.memory)} at least, and {spelt(memory)} are free; fewer audit.records or "
            "engine.workers take less; resources.force=true runs anyway"
        )


def free_disk(folder: Path) -> int:
    """Bytes free where ``folder`` is, or will be. What is no disk (/proc) has none to tell of: writing to it fails by itself."""
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    found = shutil.disk_usage(there)
    return found.free if found.total else sys.maxsize


def free_memory() -> int | None:
    """Bytes that this process may still take, None where the system does not say."""
    known = []
    if MEMINFO.is_file():
        rows = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
        if "MemAvailable" in rows:
            known.append(int(rows["MemAvailable"].split()[0]) * 1024)
    for file in LIMITS:
        if file.is_file() and (text := file.read_text().strip()).isdigit():
            known.append(int(text))
    if not known and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(known, default=None)


def spelt(size: float) -> str:
    """1536 -> "1.5 kB", 3e9 -> "3 GB" (powers of 1000)."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError("unreachable")

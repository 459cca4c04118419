"""CPU time and disk by stage, from a small audit of the same data, model and settings: a probe.

The probe trains one round of each phase, replays a few worlds of one round, and runs every attack, long searches at
two lengths, which tells what a step costs. What was measured is scaled to the sizes of the whole run.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from attacks.types import Attack, Family
from privdd.auditing.noised_reads import federations, replays
from privdd.auditing.pipeline import Audited, audit, stages_at
from privdd.auditing.pricing.needs import handed_over, needs, processes
from privdd.auditing.pricing.price import Price, loading
from privdd.auditing.pricing.round_cost import round_cost
from privdd.federated.experiment import Experiment
from privdd.federated.kept_rounds import KEPT
from privdd.federated.simulation import Plan
from privdd.runtime.run_folder import RunFolder
from privdd.runtime.workers import threads

AGAIN = "~"  # marks the second and third run of an attack in the probe
START = (
    7.0  # CPU seconds of imports, config, data and what ends a run: measured, as the probe itself has them behind it
)
SHADOW = 0.05  # CPU seconds of all membership attacks on one surface for one world: measured
RECORDED = 0.7  # of its steps' cost: a long search replays recorded kernels


@dataclass(frozen=True)
class Probe:
    """A small audit to run. attacks: name -> attack, those of ``lengths`` three times (the first warms up);
    lengths: name -> (two lengths of its search in the probe, its length in the whole run)."""

    experiment: Experiment
    attacks: Mapping[str, Attack]
    lengths: Mapping[str, tuple[int, int, int]]


def price(whole: Experiment, probe: Probe, folder: Path, report: Callable[[RunFolder, Audited], object]) -> Price:
    """What an audit of ``whole`` takes; the probe's files go into ``folder``. report: writes findings and page."""
    began, clock = time.process_time(), time.monotonic()
    kept = RunFolder(folder)
    audited = audit(probe.experiment, probe.attacks, kept)
    reporting = time.process_time()
    report(kept, audited)
    written = time.process_time() - reporting
    share = (reporting - began) / max(time.monotonic() - clock - written, 1e-6)  # of a core that this process had
    stages, longest = _stages(whole, probe, audited, min(share, 1.0))
    stages |= {"start": START, "report": written, **loading(whole.engine, whole.run.device)}
    memory = max(_peak() * (1 + processes(whole.engine)), needs(whole).memory)
    return Price(stages, longest, whole.engine.size, memory, _disk(whole, probe, folder))


def _peak() -> int:
    """Bytes that this process ever held: what a worker, which runs the same attacks, comes near."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _stages(whole: Experiment, probe: Probe, audited: Audited, share: float) -> tuple[dict[str, float], float]:
    """CPU seconds by stage, and those of the longest single attack. share: CPU seconds per second of wall."""
    small, seconds = probe.experiment, audited.seconds
    cost = round_cost(whole, small, share * seconds["train"])
    per_world = _world(audited, small) if whole.audit.worlds > 1 else 0.0
    attacks = _attacks(whole, probe, audited, share)
    stages = {
        "train": cost.training(whole.plan, small.plan),
        "worlds": share * seconds["worlds"]
        + per_world * (replays(whole, probe.attacks) - 1) * replayed_rounds(whole.plan, whole.audit.rounds),
        "federations": federations(whole, probe.attacks) * cost.federation(whole.plan, whole.audit.federation_rounds),
        "attacks": sum(attacks.values()),
        "guarantee tests": share * sum(_seconds(audited, Family.GUARANTEE).values()),
    }
    return {name: value for name, value in stages.items() if value}, max(attacks.values(), default=0.0)


def _world(audited: Audited, small: Experiment) -> float:
    """CPU seconds of one replay in one round, on average over the phases: the second of two, so that all is warm."""
    scene = audited.scene
    whole = small.shards[scene.plan.victim]
    spent = []
    with tempfile.TemporaryDirectory() as folder, threads(small.engine.threads):
        for stage in stages_at(scene, whole, RunFolder(Path(folder)), {t: (t,) for t in audited.training}).values():
            batched = scene.plan.method.shares_work
            worlds = stage.groups[0] if batched else range(1, 2)
            task = stage.task(worlds, batched=batched)
            task.run()
            began = time.process_time()
            task.run()
            spent.append((time.process_time() - began) / len(worlds))
    return sum(spent) / max(len(spent), 1)


def _attacks(whole: Experiment, probe: Probe, audited: Audited, share: float) -> dict[str, float]:
    """CPU seconds of each attack at full length."""
    spent = {name: share * value for name, value in _seconds(audited).items()}
    surfaces = {f.surface for f in audited.findings if f.family == Family.MEMBERSHIP}
    found = {name: value for name, value in spent.items() if AGAIN not in name and name not in probe.lengths}
    for name, (short, longer, full) in probe.lengths.items():
        if name in spent:
            found[name] = at_length(spent[f"{name}{AGAIN}1"], spent[f"{name}{AGAIN}2"], short, longer, full)
    more = SHADOW * max(0, replays(whole, probe.attacks) - probe.experiment.audit.worlds) * len(surfaces)
    return {**found, "shadow models": more}


def at_length(one: float, two: float, short: int, longer: int, full: int) -> float:
    """Seconds at length ``full`` of what took ``one`` at ``short`` and ``two`` at ``longer``, as a straight line."""
    step = max(two - one, 0.0) / max(longer - short, 1)
    return max(one, two) + step * max(full - longer, 0)


def _seconds(audited: Audited, family: Family | None = None) -> dict[str, float]:
    """Wall seconds by attack, of one family, or of all but the guarantee tests."""
    found: dict[str, float] = {}
    for finding in audited.findings:
        if (finding.family == family) if family else (finding.family != Family.GUARANTEE):
            found[finding.attack] = found.get(finding.attack, 0.0) + finding.measures.get("seconds", 0.0)
    return found


def replayed_rounds(plan: Plan, most: int) -> int:
    """Rounds that are replayed: of each phase at most ``most``, of those that are kept."""
    phases = [plan.method.phase(t) for t in range(plan.method.rounds)]
    return sum(min(most, KEPT, phases.count(phase)) for phase in set(phases))


def federation_rounds(whole: Experiment) -> int:
    """Client rounds of one replay of the whole federation."""
    plan, last = whole.plan, whole.audit.federation_rounds
    rounds = range(plan.method.rounds)[-last:] if last else range(plan.method.rounds)
    return sum(len(plan.participants(t)) for t in rounds)


def _disk(whole: Experiment, probe: Probe, folder: Path) -> int:
    """Bytes of the run folder: artifacts by what the server is handed, shadow models by number, the rest as it is."""
    sizes = {part: _size(folder / part) for part in ("artifacts", "worlds")}
    rest = _size(folder) - sum(sizes.values())
    small, attacks = probe.experiment, probe.attacks
    rounds = _uploads(whole.plan) / _uploads(small.plan)
    many, few = ((replays(one, attacks) - 1) * replayed_rounds(one.plan, one.audit.rounds) for one in (whole, small))
    return int(rest + sizes["artifacts"] * rounds + sizes["worlds"] * many / max(few, 1))


def _uploads(plan: Plan) -> int:
    """How many uploads, or sums of them, the server is handed in the whole of training."""
    return sum(len(handed_over(plan, t)) for t in range(plan.method.rounds))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

"""What a run will take: memory and disk that it needs at least, and CPU time by stage.

One line before a run starts, from one round and one step of one client; more from a short probe of the run itself
(``--dry-run``), or from a part of a few rounds where they are long. What cannot fit is refused before anything is computed.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional

from attacks.types import IMAGE_SURFACES, Attack, Family, Surface
from privdd.auditing.adversary_view import MAX_BLOCK_BYTES, MAX_MATRIX_BYTES
from privdd.auditing.noised_sums import federation_count, is_closed_form, replay_count
from privdd.auditing.pipeline import AuditState, audit_experiment
from privdd.auditing.shadow_models import count_shared_rounds, shadow_trainings_at
from privdd.auditing.timing import MAX_ROUND_SECONDS, RoundTiming, RoundTimings
from privdd.core.device import to_device
from privdd.core.loop_timing import LOOP_ALLOWANCE, TimeLimitExceeded, cpu_time_limit, truncate_loops
from privdd.core.types import Received, State, Values
from privdd.core.validation import BadConfig
from privdd.federated.evaluation import measure_accuracy
from privdd.federated.experiment import Experiment
from privdd.federated.method import Images
from privdd.federated.noise_log import NoiseLog
from privdd.federated.secure_aggregation import SUM_CLIENT
from privdd.federated.simulation import SNAPSHOTS_PER_PHASE, Plan, run_round, start_training
from privdd.runtime.engine import Engine
from privdd.runtime.progress import format_seconds
from privdd.runtime.run_folder import RunFolder
from privdd.runtime.startup import can_fork
from privdd.runtime.workers import torch_threads

# --- needs -------------------------------------------------------------------------------------
# What a run needs at least, from its settings alone; one that cannot fit is refused before anything is computed.


BYTES_PER_NUMBER = 4  # of a number
PROCESS_BYTES = 400 * 2**20  # bytes of a process that has imported everything: measured
MEMINFO = Path("/proc/meminfo")
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class ResourceNeeds:
    """Bytes, at least. disk: of the artifacts that are kept; memory: of the largest parts that are held at once."""

    disk: int
    memory: int


def least_needs(experiment: Experiment) -> ResourceNeeds:
    """The least that a run of ``experiment`` takes."""
    return ResourceNeeds(_artifact_bytes(experiment), _memory_bytes(experiment))


def _artifact_bytes(experiment: Experiment) -> int:
    plan, capture = experiment.plan, experiment.capture
    kept = {s for s in plan.method.uploads.values() if capture.surfaces == "all" or s in capture.surfaces}
    each = BYTES_PER_NUMBER * (
        _model_numbers(experiment) * (Surface.UPDATE in kept) + _image_numbers(experiment) * bool(kept & IMAGE_SURFACES)
    )
    sent = sum(
        capture.is_kept(plan, t, Received(client, t, {}), each)
        for t in range(plan.method.rounds)
        if plan.method.audit_hooks.phase(t) == "train"
        for client in uploading_clients(plan, t)
    )
    return each * sent


def uploading_clients(plan: Plan, round: int) -> list[int]:
    """Whose uploads the server is handed in a round: every client's that takes part, or their sum's alone."""
    there = plan.participants(round)
    return [SUM_CLIENT] if plan.trust.is_summed and there else there


def _memory_bytes(experiment: Experiment) -> int:
    """The program, in each worker process too, all clients' records, the kept rounds of the audited client, and as many
    gradients as are held."""
    plan = experiment.plan
    model = _model_numbers(experiment)
    own = PROCESS_BYTES + BYTES_PER_NUMBER * math.prod(plan.problem.shape) * sum(
        len(s.train) for s in experiment.shards
    )
    own += (
        BYTES_PER_NUMBER * model * 2 * min(SNAPSHOTS_PER_PHASE, plan.method.rounds)
        + worker_process_count(experiment.engine) * PROCESS_BYTES
    )
    if experiment.auditing is None or Surface.UPDATE not in plan.method.uploads.values():
        return own
    audited = min(experiment.audit_settings.records, len(experiment.shards[plan.victim].train))
    gradients = BYTES_PER_NUMBER * model * audited
    gradients = (
        gradients if gradients <= MAX_MATRIX_BYTES else max(2 * MAX_BLOCK_BYTES, BYTES_PER_NUMBER * model)
    )  # a block, and its parts
    return own + gradients * (1 + worker_process_count(experiment.engine))


def worker_process_count(engine: Engine) -> int:
    """Worker processes on this machine."""
    return engine.size if engine.kind == "processes" else 0


def _model_numbers(experiment: Experiment) -> int:
    """Numbers in the classifier that travels."""
    model = experiment.plan.method.audit_hooks.classifier(experiment.plan.problem)
    return 0 if model is None else sum(t.numel() for t in model.state_dict().values())


def _image_numbers(experiment: Experiment) -> int:
    """Numbers in one client's synthetic images."""
    plan = experiment.plan
    return plan.method.audit_hooks.images_per_class() * plan.problem.classes * math.prod(plan.problem.shape)


def check_resources(experiment: Experiment, folder: Path, *, force: bool) -> None:
    """Raises BadConfig, one line, where disk or memory cannot hold the run; nothing where ``force``."""
    if force:
        return
    least, disk, memory = least_needs(experiment), free_disk(folder), free_memory()
    if least.disk > disk:
        raise BadConfig(
            f"capture: what clients send takes {format_bytes(least.disk)} at least, and {format_bytes(disk)} are free at {folder}; "
            "capture.clients=victim keeps what attacks read; resources.force=true runs anyway"
        )
    if experiment.engine.kind != "ray" and memory is not None and least.memory > memory:
        raise BadConfig(
            f"memory: this run takes {format_bytes(least.memory)} at least, and {format_bytes(memory)} are free; fewer audit.records or "
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
    for file in CGROUP_LIMITS:
        if file.is_file() and (text := file.read_text().strip()).isdigit():
            known.append(int(text))
    if not known and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(known, default=None)


def format_bytes(size: float) -> str:
    """1536 -> "1.5 kB", 3e9 -> "3 GB" (powers of 1000)."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


# --- price -------------------------------------------------------------------------------------
# A price: what a run takes, by stage, as a table of plain text.


WORKER_START = "workers' start"
WORKER_SECONDS = (
    4.0  # CPU seconds that a worker process takes to load everything and run it for the first time: measured
)
FORKSERVER_SECONDS, FORK_SECONDS = (
    3.5,
    0.5,
)  # ... that a process takes to load it for all, and a worker that is forked from it then
PARALLEL_STAGES = ("train", "worlds", "federations", "attacks", "guarantee tests", WORKER_START)


def worker_start_seconds(engine: Engine, device: str) -> dict[str, float]:
    """CPU seconds that workers take to start, as a stage; {} where there are none. device: cpu or cuda."""
    if engine.kind == "serial":
        return {}
    forked = engine.kind == "processes" and can_fork(device)
    return {WORKER_START: FORKSERVER_SECONDS + FORK_SECONDS * engine.size if forked else WORKER_SECONDS * engine.size}


@dataclass(frozen=True)
class CostEstimate:
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
    def cpu_seconds(self) -> float:
        """CPU seconds in all."""
        return sum(self.stages.values())

    @property
    def wall_seconds(self) -> float:
        """Seconds on the engine's workers, each with a core of its own."""
        shared = sum(self.stages.get(name, 0.0) for name in PARALLEL_STAGES)
        attacks = max(self.longest - self.stages.get("attacks", 0.0) / self.workers, 0.0)
        return self.cpu_seconds - shared + shared / self.workers + attacks

    def format_lines(self) -> list[str]:
        """One for each stage, then the totals."""
        rows = [f"  {name:<16}{value:>8.1f} CPU s" for name, value in self.stages.items()]
        word = "at least" if self.least else "about"
        total = f"{word} {format_seconds(self.wall_seconds)} on {self.workers} worker{'s' * (self.workers > 1)}, {self.cpu_seconds:.0f} CPU s"
        return [*rows, f"{total}; memory {format_bytes(self.memory)}, disk {format_bytes(self.disk)}"]


# --- round cost --------------------------------------------------------------------------------
# What rounds cost. The probe's one round of a phase is its first and its last at once, so it costs more than most do.
#
# A last round may publish what takes longer than all rounds before it, and a first one computes what is kept from then on.
# So the first phase's round is timed again, as a round with others after it, and as one without; by now all is warm.


@dataclass(frozen=True)
class RoundCost:
    """CPU seconds. once: of the probe's training; first, later: of one more client round, in the first phase and in
    the others; closing: what a last round takes beyond what others do."""

    once: float
    first: float
    later: float
    closing: float

    def training_seconds(self, whole: Plan, small: Plan) -> float:
        """Of all rounds of ``whole``, of which ``small`` has trained one in each phase."""
        more = {
            phase: whole_count - count_client_rounds(small, phase)
            for phase, whole_count in _client_rounds_by_phase(whole).items()
        }
        return self.once + sum(max(count, 0) * self._seconds_each(whole, phase) for phase, count in more.items())

    def federation_seconds(self, whole: Plan, last: int) -> float:
        """Of one replay of the whole federation: its last rounds, so many (0: all)."""
        rounds = range(whole.method.rounds)[-last:] if last else range(whole.method.rounds)
        return self.closing + sum(
            self._seconds_each(whole, whole.method.audit_hooks.phase(t)) * len(whole.participants(t)) for t in rounds
        )

    def _seconds_each(self, plan: Plan, phase: str) -> float:
        return self.first if phase == plan.method.audit_hooks.phase(0) else self.later


def measure_round_cost(
    whole: Experiment, small: Experiment, once: float, again: Callable[[Plan], float] | None = None
) -> RoundCost:
    """once: CPU seconds of training ``small``; again: those of the first round of a plan (default: it is run)."""
    again = again or (lambda plan: _time_first_round(plan, small))
    clients = count_client_rounds(small.plan, small.plan.method.audit_hooks.phase(0))
    others = count_client_rounds(small.plan) - clients
    usual = again(replace(small.plan, method=whole.plan.method))
    if others:  # the last round is of another phase, and has not been timed by itself
        return RoundCost(once, usual / clients, max(once - usual, 0.0) / others, 0.0)
    closing = again(small.plan) - usual if whole.plan.method.rounds > 1 else 0.0
    return RoundCost(once, usual / clients, 0.0, max(closing, 0.0))


def _time_first_round(plan: Plan, small: Experiment) -> float:
    began = time.process_time()
    progress = start_training(plan, small.new_ledger())
    progress = run_round(plan, progress, small.shards, small.engine, record=NoiseLog(plan.victim))[0]
    measure_accuracy(plan, progress, small.test_records, small.shards)
    return time.process_time() - began


def count_client_rounds(plan: Plan, phase: str | None = None) -> int:
    """Rounds of single clients in the whole of training, or in one of its phases."""
    found = _client_rounds_by_phase(plan)
    return sum(found.values()) if phase is None else found.get(phase, 0)


def _client_rounds_by_phase(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for t in range(plan.method.rounds):
        phase = plan.method.audit_hooks.phase(t)
        found[phase] = found.get(phase, 0) + len(plan.participants(t))
    return found


# --- probe -------------------------------------------------------------------------------------
# CPU time and disk by stage, from a small audit of the same data, model and settings: a probe.
#
# The probe trains one round of each phase, replays a few worlds of one round, and runs every attack, long searches at
# two lengths, which tells what a step costs. What was measured is scaled to the sizes of the whole run.


REPEAT_MARK = "~"  # marks the second and third run of an attack in the probe
START_SECONDS = (
    7.0  # CPU seconds of imports, config, data and what ends a run: measured, as the probe itself has them behind it
)
SHADOW_SECONDS = 0.05  # CPU seconds of all membership attacks on one surface for one world: measured
RECORDED_SHARE = 0.7  # of its steps' cost: a long search replays recorded kernels


@dataclass(frozen=True)
class CostProbe:
    """A small audit to run. attacks: name -> attack, those of ``lengths`` three times (the first warms up);
    lengths: name -> (two lengths of its search in the probe, its length in the whole run)."""

    experiment: Experiment
    attacks: Mapping[str, Attack]
    lengths: Mapping[str, tuple[int, int, int]]


def estimate_from_probe(
    whole: Experiment, probe: CostProbe, folder: Path, report: Callable[[RunFolder, AuditState], object]
) -> CostEstimate:
    """What an audit of ``whole`` takes; the probe's files go into ``folder``. report: writes findings and page."""
    began, clock = time.process_time(), time.monotonic()
    kept = RunFolder(folder)
    audited = audit_experiment(probe.experiment, probe.attacks, kept)
    reporting = time.process_time()
    report(kept, audited)
    written = time.process_time() - reporting
    share = (reporting - began) / max(time.monotonic() - clock - written, 1e-6)  # of a core that this process had
    stages, longest = _stage_seconds(whole, probe, audited, min(share, 1.0))
    stages |= {"start": START_SECONDS, "report": written, **worker_start_seconds(whole.engine, whole.run.device)}
    memory = max(_peak_memory() * (1 + worker_process_count(whole.engine)), least_needs(whole).memory)
    return CostEstimate(stages, longest, whole.engine.size, memory, _run_folder_bytes(whole, probe, folder))


def _peak_memory() -> int:
    """Bytes that this process ever held: what a worker, which runs the same attacks, comes near."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _stage_seconds(
    whole: Experiment, probe: CostProbe, audited: AuditState, share: float
) -> tuple[dict[str, float], float]:
    """CPU seconds by stage, and those of the longest single attack. share: CPU seconds per second of wall."""
    small, seconds = probe.experiment, audited.seconds
    cost = measure_round_cost(whole, small, share * seconds["train"])
    per_world = _replay_seconds(audited, small) if whole.audit_settings.worlds > 1 else 0.0
    attacks = _attack_seconds(whole, probe, audited, share)
    stages = {
        "train": cost.training_seconds(whole.plan, small.plan),
        "worlds": share * seconds["worlds"]
        + per_world
        * (replay_count(whole, probe.attacks) - 1)
        * count_replayed_rounds(whole.plan, whole.audit_settings.rounds),
        "federations": federation_count(whole, probe.attacks)
        * cost.federation_seconds(whole.plan, whole.audit_settings.federation_rounds),
        "attacks": sum(attacks.values()),
        "guarantee tests": share * sum(_seconds_by_attack(audited, Family.GUARANTEE).values()),
    }
    return {name: value for name, value in stages.items() if value}, max(attacks.values(), default=0.0)


def _replay_seconds(audited: AuditState, small: Experiment) -> float:
    """CPU seconds of one replay in one round, on average over the phases: the second of two, so that all is warm."""
    scene = audited.finished_run
    whole = small.shards[scene.plan.victim]
    spent = []
    with tempfile.TemporaryDirectory() as folder, torch_threads(small.engine.threads):
        for stage in shadow_trainings_at(
            scene, whole, RunFolder(Path(folder)), {t: (t,) for t in audited.signals.training}
        ).values():
            batched = scene.plan.method.audit_hooks.shares_work
            worlds = stage.replay_groups[0] if batched else range(1, 2)
            task = stage.replay_task(worlds, batched=batched)
            task.run()
            began = time.process_time()
            task.run()
            spent.append((time.process_time() - began) / len(worlds))
    return sum(spent) / max(len(spent), 1)


def _attack_seconds(whole: Experiment, probe: CostProbe, audited: AuditState, share: float) -> dict[str, float]:
    """CPU seconds of each attack at full length."""
    spent = {name: share * value for name, value in _seconds_by_attack(audited).items()}
    surfaces = {f.surface for f in audited.findings if f.family == Family.MEMBERSHIP}
    found = {name: value for name, value in spent.items() if REPEAT_MARK not in name and name not in probe.lengths}
    for name, (short, longer, full) in probe.lengths.items():
        if name in spent:
            found[name] = extrapolate_length(
                spent[f"{name}{REPEAT_MARK}1"], spent[f"{name}{REPEAT_MARK}2"], short, longer, full
            )
    more = (
        SHADOW_SECONDS
        * max(0, replay_count(whole, probe.attacks) - probe.experiment.audit_settings.worlds)
        * len(surfaces)
    )
    return {**found, "shadow models": more}


def extrapolate_length(one: float, two: float, short: int, longer: int, full: int) -> float:
    """Seconds at length ``full`` of what took ``one`` at ``short`` and ``two`` at ``longer``, as a straight line."""
    step = max(two - one, 0.0) / max(longer - short, 1)
    return max(one, two) + step * max(full - longer, 0)


def _seconds_by_attack(audited: AuditState, family: Family | None = None) -> dict[str, float]:
    """Wall seconds by attack, of one family, or of all but the guarantee tests."""
    found: dict[str, float] = {}
    for finding in audited.findings:
        if (finding.family == family) if family else (finding.family != Family.GUARANTEE):
            found[finding.attack] = found.get(finding.attack, 0.0) + finding.measures.get("seconds", 0.0)
    return found


def count_replayed_rounds(plan: Plan, most: int) -> int:
    """Rounds that are replayed: of each phase at most ``most``, of those that are kept."""
    phases = [plan.method.audit_hooks.phase(t) for t in range(plan.method.rounds)]
    return sum(min(most, SNAPSHOTS_PER_PHASE, phases.count(phase)) for phase in set(phases))


def count_federation_rounds(whole: Experiment) -> int:
    """Client rounds of one replay of the whole federation."""
    plan, last = whole.plan, whole.audit_settings.federation_rounds
    rounds = range(plan.method.rounds)[-last:] if last else range(plan.method.rounds)
    return sum(len(plan.participants(t)) for t in rounds)


def _run_folder_bytes(whole: Experiment, probe: CostProbe, folder: Path) -> int:
    """Bytes of the run folder: artifacts by what the server is handed, shadow models by number, the rest as it is."""
    sizes = {part: _folder_bytes(folder / part) for part in ("artifacts", "worlds")}
    rest = _folder_bytes(folder) - sum(sizes.values())
    small, attacks = probe.experiment, probe.attacks
    rounds = _count_uploads(whole.plan) / _count_uploads(small.plan)
    many, few = (
        (replay_count(one, attacks) - 1) * count_replayed_rounds(one.plan, one.audit_settings.rounds)
        for one in (whole, small)
    )
    return int(rest + sizes["artifacts"] * rounds + sizes["worlds"] * many / max(few, 1))


def _count_uploads(plan: Plan) -> int:
    """How many uploads, or sums of them, the server is handed in the whole of training."""
    return sum(len(uploading_clients(plan, t)) for t in range(plan.method.rounds))


def _folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


# --- beforehand --------------------------------------------------------------------------------
# One line on what an audit will take, before it starts: rough, from one round and one step of one client.
#
# ``--dry-run`` measures every stage and takes longer. Attacks and guarantee tests cost here what they did on digits,
# attacks in steps of local training: a factor of two or three is to be expected.


MIN_ANNOUNCED_SECONDS = 60.0  # seconds
STEPS_PER_SEARCH_STEP = 8.0  # local steps that one step of an attack's search costs: measured
TEST_SECONDS = 20.0  # CPU seconds of all guarantee tests: measured
SHARED_REPLAY_SHARE = 0.3  # of a client's round, for each of several that share their work: measured


@dataclass(frozen=True)
class UnitCost:
    """CPU seconds of a client's round in the first phase, and of one step on a batch with the classifier (in the first
    phase too, where there is no classifier)."""

    round: float
    step: float

    def round_seconds(self, plan: Plan, phase: str, size: int) -> float:
        """Of one client's round in a phase: the first as it was timed, others by their steps."""
        if phase == plan.method.audit_hooks.phase(0):
            return self.round
        return self.step * _local_steps(plan, size)


def _local_steps(plan: Plan, size: int) -> int:
    return max(int(plan.method.audit_hooks.settings(size).get("local_steps") or 1), 1)


def describe_estimate(experiment: Experiment, searches: Iterable[int]) -> str:
    """ "estimated ..." for a run above a minute, else "". searches: the length of each attack's longest search."""
    if experiment.engine.clients_remember:  # real clients: nothing of theirs is timed here
        return ""
    lengths = list(searches)
    price = estimate_cost(experiment, time_unit_costs(experiment), lengths)
    if (
        price.wall_seconds >= MIN_ANNOUNCED_SECONDS
    ):  # a first round may also compute what is kept from then on, such as rows of a public map
        price = estimate_cost(experiment, time_unit_costs(experiment), lengths)
    if price.wall_seconds < MIN_ANNOUNCED_SECONDS:
        return ""
    kind = {"serial": "one process", "processes": f"{price.workers} processes", "ray": f"{price.workers} Ray workers"}
    memory = format_bytes(price.memory)
    return f"estimated {format_seconds(price.wall_seconds)} on {kind[experiment.engine.kind]}, {memory} at least; --dry-run for details"


def time_unit_costs(experiment: Experiment) -> UnitCost:
    """The audited client's first round, whose result is thrown away, and a step of its classifier."""
    plan = experiment.plan
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys.fold("public", "init")))
    with torch_threads(experiment.engine.threads), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself warns
        took, memory = _time_client_round(experiment, broadcast)
        project = plan.method.audit_hooks.maps(broadcast, memory, plan.problem).get("projection", lambda x: x)
        return UnitCost(took, _time_training_step(experiment, took, project))


def _time_client_round(experiment: Experiment, broadcast: Values) -> tuple[float, State]:
    """(CPU seconds, what is remembered): the first turns of each long loop, scaled. Code that never reaches a counted
    loop, such as a user's own training, is stopped after ``MAX_ROUND_SECONDS``: it then takes longer than is said."""
    plan = experiment.plan
    with truncate_loops(LOOP_ALLOWANCE) as part:
        began = part.cpu_seconds()
        try:
            with cpu_time_limit(MAX_ROUND_SECONDS, unless=lambda: part.turns > 0):
                shard, ctx = experiment.shards[plan.victim], plan.client_context(0, plan.victim)
                memory = plan.method.local(broadcast, {}, shard, ctx)[1]
        except TimeLimitExceeded:
            memory = {}
        return part.cpu_seconds() - began, memory


def _time_training_step(experiment: Experiment, round: float, project: Images) -> float:
    """The second of two, so that all is warm. A network of the user's own may have layers that are frozen or not used.

    project: from records to what the classifier reads.
    """
    plan, records = experiment.plan, experiment.shards[experiment.plan.victim].train
    model = plan.method.audit_hooks.classifier(plan.problem)
    if model is None or not len(records):
        return round / _local_steps(plan, len(records))
    model = to_device(model, plan.problem.device).requires_grad_()
    batch = slice(int(plan.method.audit_hooks.settings(len(records)).get("batch_size") or 16))
    x, y = to_device((project(records.x[batch]), records.y[batch]), plan.problem.device)
    for _ in range(2):
        began = time.process_time()
        loss = functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        [grad.sum().item() for grad in grads[-1:] if grad is not None]  # a GPU has finished
    return time.process_time() - began


def count_replays(experiment: Experiment) -> tuple[int, int, float]:
    """(replays of the audited client, of the whole federation, what one of several together costs of one alone)."""
    plan, audit = experiment.plan, experiment.audit_settings
    closed = experiment.privacy.unit == "record" and is_closed_form(plan)  # if an attack reads it, as one of "all" does
    worlds = min(audit.worlds, audit.processed_worlds if closed else audit.worlds)
    federations = min(audit.federations, audit.processed_federations if closed else audit.federations)
    return (
        worlds,
        federations,
        SHARED_REPLAY_SHARE if plan.method.audit_hooks.shares_work and not plan.mechanisms else 1.0,
    )


def estimate_cost(experiment: Experiment, unit: UnitCost, searches: Iterable[int]) -> CostEstimate:
    """The price at these costs of a client's work."""
    plan, audit, size = experiment.plan, experiment.audit_settings, len(experiment.shards[experiment.plan.victim].train)
    phases = [plan.method.audit_hooks.phase(t) for t in range(plan.method.rounds)]
    cost = {phase: unit.round_seconds(plan, phase, size) for phase in phases}
    one = sum(cost[phase] * min(audit.rounds, SNAPSHOTS_PER_PHASE, phases.count(phase)) for phase in cost)
    attacks = [STEPS_PER_SEARCH_STEP * unit.step * length for length in searches]
    worlds, federations, share = count_replays(experiment)
    stages = {
        "start": START_SECONDS,
        **worker_start_seconds(experiment.engine, experiment.run.device),
        "train": sum(cost[phase] * len(plan.participants(t)) for t, phase in enumerate(phases)),
        "worlds": one * share * (worlds - 1),
        "federations": cost[phases[-1]] * federations * count_federation_rounds(experiment),
        "attacks": sum(attacks),
        "guarantee tests": TEST_SECONDS if plan.mechanisms else 0.0,
    }
    least = least_needs(experiment)
    return CostEstimate(stages, max(attacks, default=0.0), experiment.engine.size, least.memory, least.disk)


# --- extrapolated ------------------------------------------------------------------------------
# The price of a run whose rounds are long: a part of a few of them, scaled by the run's own numbers of steps, rounds,
# clients, replays and search steps.
#
# Attacks and guarantee tests are not run: they cost what they did on digits, attacks in steps of local training.


PROBE_TEST_SECONDS = 10.0  # CPU seconds of guarantee tests in a probe
REFERENCE_SLOW_RUNS = 40  # of guarantee tests, that TESTS was measured with


def extrapolate_cost(whole: Experiment, rounds: RoundTimings, step: float, searches: Sequence[int]) -> CostEstimate:
    """step: CPU seconds of one step of local training; searches: the length of each attack's longest search."""
    plan, audit, least = whole.plan, whole.audit_settings, least_needs(whole)
    took = [rounds.timing_of(plan, t).seconds_for(len(plan.participants(t))) for t in range(plan.method.rounds)]
    worlds, federations, share = count_replays(whole)
    shared = count_shared_rounds(plan.method, audit.federation_rounds)  # played once for all
    attacks = [STEPS_PER_SEARCH_STEP * step * length for length in searches]
    stages = {
        "start": START_SECONDS,
        **worker_start_seconds(whole.engine, whole.run.device),
        "train": rounds.opening + sum(took),
        "worlds": (1.0 if rounds.chained else share) * (worlds - 1) * _seconds_of_replay(whole, rounds),
        "federations": (federations * sum(took[shared:]) + sum(took[:shared])) if federations > 1 else 0.0,
        "attacks": sum(attacks),
        "guarantee tests": TEST_SECONDS * audit.guarantee.slow_runs / REFERENCE_SLOW_RUNS if plan.mechanisms else 0.0,
    }
    stages = {name: value for name, value in stages.items() if value}
    return CostEstimate(
        stages,
        max(attacks, default=0.0),
        whole.engine.size,
        least.memory,
        least.disk,
        describe_source(rounds),
        rounds.least,
    )


def probe_seconds(whole: Experiment, worlds: int, rounds: RoundTimings, step: float, searches: Iterable[int]) -> float:
    """CPU seconds of ``estimate_from_probe``, roughly: one round of each phase, the first thrice, replays in each, searches.

    worlds: the replays of its audit; rounds, step: of the whole run; searches: steps of the probe's.
    """
    plan, firsts = whole.plan, dict[str, RoundTiming]()
    for t, one in rounds.timed.items():
        firsts.setdefault(plan.method.audit_hooks.phase(t), one)
    trained = [one.seconds_for(len(whole.shards)) for one in (*firsts.values(), *2 * [rounds.timed[min(rounds.timed)]])]
    replays = (worlds + 1) * count_replays(whole)[2] * sum(one.victim for one in firsts.values())
    return (
        sum(trained)
        + replays
        + STEPS_PER_SEARCH_STEP * step * sum(searches)
        + (PROBE_TEST_SECONDS if plan.mechanisms else 0.0)
    )


def _seconds_of_replay(whole: Experiment, rounds: RoundTimings) -> float:
    """CPU seconds of one replay of the audited client: in the rounds that are replayed, in all where it remembers."""
    plan, phases = whole.plan, dict[str, list[float]]()
    if rounds.chained:
        return sum(rounds.timing_of(plan, t).victim for t in range(plan.method.rounds))
    for t in range(plan.method.rounds):
        phases.setdefault(plan.method.audit_hooks.phase(t), []).append(rounds.timing_of(plan, t).victim)
    return sum(
        sum(took) / len(took) * min(whole.audit_settings.rounds, SNAPSHOTS_PER_PHASE, len(took))
        for took in phases.values()
    )


def describe_source(rounds: RoundTimings) -> str:
    """Where the price comes from, in plain words."""
    timed = f"{len(rounds.timed)} round{'s' * (len(rounds.timed) > 1)}"
    how = ["two clients"]
    if rounds.left:
        how.append("the first steps of each long loop")
    if rounds.share > 1:
        how.append(f"one in {rounds.share} of a client's records")
    said = f"extrapolated from a part of {timed} on this machine ({', '.join(how)}); attacks and guarantee tests were not run"
    if rounds.least:
        said += f"; a client's round did not end within {MAX_ROUND_SECONDS:.0f} CPU s on few of its records: training takes more than this"
    return f"{said}: rough, the share of attacks may be off by a factor of five"

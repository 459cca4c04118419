"""What a run will take: memory and disk that it needs at least, and time by stage.

A round of each kind is timed, of two clients and the first steps of each long loop, and multiplied
by the run's own numbers of rounds, clients and shadow models. Attacks and guarantee tests are not
run: searches are counted in passes of the network, the rest costs what it did on digits. What
    cannot fit is refused before anything is computed."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.func import functional_call
from torch.nn import functional

from attacks.inversion.distiller_inference import DistillerInference
from attacks.inversion.gradient_attack import GradientInversion
from attacks.types import IMAGE_SURFACES, Attack, Surface
from privdd.auditing.adversary_view import MATRICES_AT_ONCE, MAX_HELD_NUMBERS
from privdd.auditing.client_hooks import method_of_client
from privdd.auditing.noised_sums import federation_count, replay_count
from privdd.auditing.record_gradients import MAX_BLOCK_BYTES, MAX_MATRIX_BYTES
from privdd.auditing.replay import BYTES_PER_NUMBER, count_model_numbers, most_kept_rounds
from privdd.auditing.shadow_models import count_shared_rounds, prefers_wide_network
from privdd.core.loop_timing import LOOP_ALLOWANCE, TruncatedLoops, truncate_loops
from privdd.core.types import Received, Shard, is_image
from privdd.core.validation import BadConfig
from privdd.federated.aggregation import SUM_CLIENT
from privdd.federated.experiment import Experiment
from privdd.federated.settings import RunSettings
from privdd.federated.simulation import (
    ClientTask,
    Plan,
    Progress,
    StepResult,
    run_round,
    start_training,
)
from privdd.federated.trainer import measure_accuracy
from privdd.methods.own_training import OwnTraining
from privdd.models import ModelSpec, build
from privdd.reporting.wording import format_bytes
from privdd.runtime.engine import IN_THIS_PROCESS, Engine, engine_in_words, torch_threads
from privdd.runtime.progress import format_seconds
from privdd.runtime.startup import can_fork, starts_beforehand

PROCESS_BYTES = 400 * 2**20  # bytes of a process that has imported everything: measured
MEMINFO = Path("/proc/meminfo")
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# What was measured on digits, in CPU seconds of one core.
START_SECONDS = 10.0  # imports, config, data, and the page
# a worker that loads everything; one that is forked
WORKER_SECONDS = 4.0
FORKSERVER_SECONDS = 3.5
FORK_SECONDS = 0.5
STEPS_PER_SEARCH_STEP = 5.0  # passes of ``time_pass`` that one step of an attack's search costs
# passes that each local step costs, where a gradient inversion goes through it in one step
STEPS_PER_LOCAL_STEP = 0.6
SIGNAL_SECONDS = 0.1  # all membership attacks, for each shadow model of the client
# all guarantee tests, for each of ``slow_runs``; of mechanisms on rows they take no second
TEST_SECONDS = 0.6
# of a replay: one of several that share their work, or train as one wide network
SHARED_SHARE = 0.3
WIDE_SHARE = 0.8
SEARCH_LENGTHS = ("iterations", "steps")  # settings of an attack, at any depth
MIN_ANNOUNCED_SECONDS = 60.0  # shorter runs are not announced
ANNOUNCEMENT_SECONDS = 0.2  # of CPU, that further rounds may take before a run
DRY_RUN_SECONDS = 30.0
# of the seconds of an estimate, for each long loop; but at least so many seconds
LOOP_SHARE = 0.1
LEAST_LOOP_SECONDS = 0.02
DISTILLER_LOOP_SECONDS = 0.1  # of each long loop of a set that an attacker distils
TIMED_TEST_RECORDS = 250
PASS_RECORDS = 16
PASSES = 10
PASS_SECONDS = 1.0  # after which no further pass is timed
SMALL_WIDTH = 32


@dataclass(frozen=True)
class ResourceNeeds:
    """Bytes, at least. disk: of the artifacts that are kept; memory: of the largest parts that are
    held at once."""

    disk: int
    memory: int


def least_needs(experiment: Experiment) -> ResourceNeeds:
    """The least that a run of ``experiment`` takes."""
    return ResourceNeeds(_artifact_bytes(experiment), _memory_bytes(experiment))


def _artifact_bytes(experiment: Experiment) -> int:
    plan = experiment.plan
    capture = experiment.capture
    kept_surfaces = {
        s
        for s in plan.method.uploads.values()
        if capture.surfaces == "all" or s in capture.surfaces
    }
    images = (
        plan.method.audit_hooks.images_per_class()
        * plan.problem.classes
        * math.prod(plan.problem.shape)
    )
    each = count_model_numbers(experiment.plan) * (Surface.UPDATE in kept_surfaces) + images * bool(
        kept_surfaces & IMAGE_SURFACES
    )
    sent = 0
    for t in (t for t in range(plan.method.rounds) if plan.method.audit_hooks.phase(t) == "train"):
        clients = plan.participants(t)  # of their sum alone is one artifact kept
        for client in [SUM_CLIENT] if plan.trust.is_summed and clients else clients:
            sent += capture.is_kept(plan, t, Received(client, t, {}), BYTES_PER_NUMBER * each)
    return BYTES_PER_NUMBER * each * sent


def _memory_bytes(experiment: Experiment) -> int:
    """The program, in each worker process too, all clients' records, the kept rounds of the audited
    client, and as many gradients as are held."""
    plan = experiment.plan
    engine = experiment.engine
    workers = engine.size if engine.kind == "processes" else 0
    model = BYTES_PER_NUMBER * count_model_numbers(experiment.plan)
    records = (
        BYTES_PER_NUMBER
        * math.prod(plan.problem.shape)
        * sum(len(s.train) for s in experiment.shards)
    )
    bytes_without_gradients = (
        (1 + workers) * PROCESS_BYTES
        + records
        + 2 * model * min(most_kept_rounds(plan), plan.method.rounds)
    )
    if experiment.auditing is None or Surface.UPDATE not in plan.method.uploads.values():
        return bytes_without_gradients
    gradients = model * min(
        experiment.audit_settings.records, len(experiment.shards[plan.victim].train)
    )
    if gradients > MAX_MATRIX_BYTES:
        gradients = max(2 * MAX_BLOCK_BYTES, model)  # a block, and its parts
    elif gradients <= BYTES_PER_NUMBER * MAX_HELD_NUMBERS:
        gradients *= MATRICES_AT_ONCE
    return bytes_without_gradients + gradients * (1 + workers)


def check_resources(experiment: Experiment, folder: Path, *, force: bool) -> None:
    """Raises BadConfig, one line, where disk or memory cannot hold the run; nothing where
    ``force``."""
    if force:
        return
    least = least_needs(experiment)
    disk = free_disk(folder)
    memory = free_memory()
    anyway = "resources.force=true runs anyway"
    if least.disk > disk:
        takes = f"what clients send takes {_size_text(least.disk)} at least"
        free = f"{_size_text(disk)} are free at {folder}"
        raise BadConfig(
            f"capture: {takes}, and {free}; capture.clients=victim keeps what attacks "
            f"read; {anyway}"
        )
    if experiment.engine.kind != "ray" and memory is not None and least.memory > memory:
        takes = (
            f"this run takes {_size_text(least.memory)} at least, and {_size_text(memory)} are free"
        )
        raise BadConfig(
            f"memory: {takes}; fewer audit.records or engine.workers take less; {anyway}"
        )


def free_disk(folder: Path) -> int:
    """Bytes free where ``folder`` is, or will be; no limit for what is no disk (/proc): writing to
    it fails by itself."""
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    usage = shutil.disk_usage(existing)
    return usage.free if usage.total else sys.maxsize


def free_memory() -> int | None:
    """Bytes that this process may still take, None where the system does not say."""
    limits = []
    if MEMINFO.is_file():
        rows = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
        if "MemAvailable" in rows:
            limits.append(int(rows["MemAvailable"].split()[0]) * 1024)
    for file in CGROUP_LIMITS:
        if file.is_file() and (text := file.read_text().strip()).isdigit():
            limits.append(int(text))
    if not limits and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _size_text(size: float) -> str:
    # a terminal's text is searched for what was typed
    return format_bytes(size).replace("\u00a0", " ")


@dataclass(frozen=True)
class RoundTiming:
    """CPU seconds of a round: of a usual client's work, of the audited client's, of the
    server's."""

    usual: float
    audited: float
    server: float


@dataclass(frozen=True)
class TwoClientEngine(Engine):
    """Runs a usual client and the audited one, and answers as the usual one for all others: the
    server has its own
    work. took: client -> CPU seconds of its latest round."""

    loops: TruncatedLoops = field(default_factory=lambda: TruncatedLoops(0.0))
    audited: int = 0
    took: dict[int, float] = field(default_factory=dict)

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        work: list[ClientTask] = list(items)
        mean = sum(len(task.shard.train) for task in work) / len(work)
        answers = dict[int, StepResult]()
        usual = min(work, key=lambda task: (abs(len(task.shard.train) - mean), task.client))
        self.took.clear()
        for task in [
            usual,
            *(task for task in work if task.client == self.audited != usual.client),
        ]:
            began = self.loops.cpu_seconds()
            answers[task.client] = fn(task)
            self.took[task.client] = self.loops.cpu_seconds() - began
        received, rows, memory = answers[usual.client]
        for client in (task.client for task in work):
            relabelled = [replace(row, client=client) for row in rows]
            yield answers.get(client) or (replace(received, client=client), relabelled, memory)


def time_rounds(experiment: Experiment, seconds: float) -> tuple[dict[int, RoundTiming], bool]:
    """(round -> its cost, whether the audited client remembers, so that a replay runs its earlier
    rounds too).

    Timed are the first and second round of each kind (a first one computes what is kept) and the
    last (it may publish what takes long), in this order while ``seconds`` of CPU are not spent.
    Accuracy is timed on a few test records. Results are thrown away.
    """
    plan = experiment.plan
    began = time.process_time()
    allowance = min(max(LEAST_LOOP_SECONDS, LOOP_SHARE * seconds), LOOP_ALLOWANCE)
    timed = dict[int, RoundTiming]()
    with (
        truncate_loops(allowance) as loops,
        torch_threads(experiment.engine.threads),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the run itself warns
        engine = TwoClientEngine(
            threads=experiment.engine.threads, loops=loops, audited=plan.victim
        )
        progress = start_training(plan, experiment.new_ledger())
        for t, needed in rounds_to_time(plan).items():
            if needed or time.process_time() - began < seconds:
                clock = loops.cpu_seconds()
                progress = run_round(plan, _progress_at(progress, t), experiment.shards, engine)[0]
                took = _take_out_start(engine.took, experiment.shards)
                server = loops.cpu_seconds() - clock - sum(engine.took.values())
                usual = next(iter(took.values()))
                server += _accuracy_seconds(experiment, progress)
                timed[t] = RoundTiming(usual, took.get(plan.victim, usual), max(server, 0.0))
    memory = progress.memories.get(plan.victim, {})
    remembers = any(plan.method.audit_hooks.upload_uses_memory(t, memory) for t in timed)
    return timed, remembers


def _take_out_start(took: Mapping[int, float], shards: Sequence[Shard]) -> dict[int, float]:
    """What clients took, but for what the first call of a process costs: their work is at most as
    their numbers of records."""
    sizes = {client: len(shards[client].train) for client in took}
    work = {}
    for client in took:
        by_others = []
        for timed, seconds in took.items():
            share = sizes[client] / max(1, sizes[timed])
            by_others.append(seconds * max(1.0, share))
        work[client] = min(by_others)
    return work


def _accuracy_seconds(experiment: Experiment, progress: Progress) -> float:
    """CPU seconds that accuracy takes after a round, from a few test records of each set."""
    began = time.process_time()
    test_set = experiment.test_records
    personal = [shard.test for shard in experiment.shards]
    test_parts = []
    for test in (test_set, *personal):
        few = min(len(test), TIMED_TEST_RECORDS)
        test_parts.append(test.take(range(few)))
    shards = [replace(shard, test=test) for shard, test in zip(experiment.shards, test_parts[1:])]
    measure_accuracy(experiment.plan, progress, test_parts[0], shards)
    is_global = experiment.plan.method.audit_hooks.accuracy_kind == "global"
    if is_global:
        all_tests = [test_set]
        timed = test_parts[:1]
    else:
        all_tests = personal
        timed = test_parts[1:]
    seconds = time.process_time() - began
    timed_records = sum(map(len, timed))
    return seconds * sum(map(len, all_tests)) / max(1, timed_records)


def rounds_to_time(plan: Plan) -> dict[int, bool]:
    """Round -> whether an estimate needs it. Rounds from which everybody drops out have no work to
    time."""
    kinds = dict[str, list[int]]()
    active_rounds = [t for t in range(plan.method.rounds) if plan.participants(t)]
    for t in active_rounds:
        kinds.setdefault(plan.method.audit_hooks.timing_group(t), []).append(t)
    is_needed = {active_rounds[-1]: False}
    for rounds in kinds.values():
        is_needed |= dict.fromkeys(rounds[1:2], False)
    for rounds in kinds.values():
        is_needed[rounds[0]] = True
    return dict(sorted(is_needed.items()))


def _progress_at(progress: Progress, t: int) -> Progress:
    """``progress`` as before round ``t``, for a server that counts its rounds too ("round" in its
    state)."""
    server = dict(progress.server)
    for name, value in progress.server.items():
        if name.rpartition("/")[2] == "round":
            server[name] = torch.full_like(value, t)
    return replace(progress, round=t, server=server)


def timing_of_round(plan: Plan, timed: Mapping[int, RoundTiming], t: int) -> RoundTiming:
    """A round's own, or that of the latest before it of its kind, else of the latest before it at
    all."""
    earlier = [s for s in timed if s <= t] or [min(timed)]
    kind_of = plan.method.audit_hooks.timing_group
    kind = kind_of(t)
    same_kind = [s for s in earlier if kind_of(s) == kind]
    return timed[max(same_kind or earlier)]


@dataclass(frozen=True)
class Stage:
    """CPU seconds, and seconds of wall on the engine's workers, each with a core of its own."""

    cpu: float
    wall: float


def spread_tasks(seconds: float, tasks: int, workers: int) -> Stage:
    """Tasks of equal length on workers: in waves."""
    return Stage(seconds * tasks, seconds * math.ceil(tasks / workers))


@dataclass(frozen=True)
class CostEstimate:
    """stages by name; memory, disk: bytes, at least; source: where it comes from, in words."""

    stages: Mapping[str, Stage]
    engine: Engine
    needs: ResourceNeeds
    source: str

    @property
    def cpu_seconds(self) -> float:
        return sum(stage.cpu for stage in self.stages.values())

    @property
    def wall_seconds(self) -> float:
        return sum(stage.wall for stage in self.stages.values())

    def format_lines(self) -> list[str]:
        """The totals, then one line for each stage."""
        rows = [f"  {name:<16}{stage.cpu:>8.1f} CPU s" for name, stage in self.stages.items()]
        took = f"about {format_seconds(self.wall_seconds)} on {engine_in_words(self.engine)}"
        memory = _size_text(self.needs.memory)
        disk = _size_text(self.needs.disk)
        return [
            f"{took}, {self.cpu_seconds:.0f} CPU s; memory {memory} and disk {disk}, at least",
            *rows,
        ]


def choose_engine(
    experiment: Experiment, attacks: Mapping[str, Attack], seconds: float
) -> tuple[Experiment, CostEstimate | None]:
    """``experiment`` with an engine in the place of ``auto``, and what the run costs; None where
    nothing was timed.

    The rule, where there is more than one core, and memory for processes: with the work predicted
    for one process and for several (counts of rounds, replays and search steps times what was
    timed), processes are taken if they save more seconds than their start costs CPU seconds. At
    smoke sizes nothing is started before this is known, so that what they save is less by their
    start: work of some 17 CPU seconds on two cores is the least that they are taken for. The choice
    changes no bit of a result. Rounds of somebody else's code, or machine, are not timed, and stay
    in this process.

    Args:
        experiment: With the engine that was asked for.
        attacks: None where the run only trains.
        seconds: As of ``estimate_cost``.
    """
    possible = [experiment]
    if experiment.engine.kind == "auto":
        kinds = [
            replace(experiment, engine=replace(experiment.engine, kind=k))
            for k in ("serial", "processes")
        ]
        possible = [
            candidate
            for candidate in kinds
            if candidate.engine.kind == "serial" or can_spread(candidate)
        ]
    untimed = experiment.engine.clients_remember or trains_by_own_code(experiment)
    if untimed or (
        experiment.auditing is None and len(possible) == 1
    ):  # a training says nothing of its price
        return possible[0], None
    timing = time_rounds(experiment, seconds)
    first, *other_costs = (price_rounds(candidate, attacks, *timing) for candidate in possible)
    for alternative, cost in zip(possible[1:], other_costs):
        if first.wall_seconds - cost.wall_seconds > cost.stages["workers' start"].cpu:
            return alternative, cost
    return possible[0], first


def can_spread(experiment: Experiment) -> bool:
    """Whether there are several workers for the processes of ``experiment``, and memory; a GPU is
    not shared."""
    free = free_memory()
    needed = least_needs(experiment).memory
    return (
        experiment.engine.size > 1
        and experiment.run.device == "cpu"
        and (free is None or needed <= free)
    )


def estimate_cost(
    experiment: Experiment, attacks: Mapping[str, Attack], seconds: float
) -> CostEstimate:
    """Estimate the cost of an audit, after timing rounds for ``seconds`` of CPU, or as long as one
    of each kind takes."""
    return price_rounds(experiment, attacks, *time_rounds(experiment, seconds))


def price_rounds(
    experiment: Experiment,
    attacks: Mapping[str, Attack],
    timed: Mapping[int, RoundTiming],
    chained: bool,
) -> CostEstimate:
    """The price of a run whose rounds cost what ``time_rounds`` found; of training alone where
    nothing is audited."""
    plan = experiment.plan
    engine = experiment.engine
    rounds = {t: timing_of_round(plan, timed, t) for t in range(plan.method.rounds)}
    trained = {}
    # clients in waves, the audited one as long as it takes, then the server in this process
    for t, stage in rounds.items():
        count = len(plan.participants(t))
        local = spread_tasks(stage.usual, count, engine.size)
        wall = local.wall
        if count:
            wall = max(wall, stage.audited)
        trained[t] = Stage(local.cpu + stage.server, wall + stage.server)
    stages = {
        "start": Stage(START_SECONDS, START_SECONDS),
        "workers' start": _worker_start(engine, experiment.run),
        "train": _add(*trained.values()),
    }
    if experiment.auditing is not None:
        stages |= _audit_stages(experiment, attacks, rounds, trained, chained)
    clients = f"{len(timed)} round{'s' * (len(timed) > 1)} of two clients"
    source = (
        f"from {clients} on this machine; attacks and guarantee tests were not run, their "
        "share is rough"
    )
    return CostEstimate(
        {k: stage for k, stage in stages.items() if stage.cpu},
        engine,
        least_needs(experiment),
        source,
    )


def _audit_stages(
    experiment: Experiment,
    attacks: Mapping[str, Attack],
    rounds: Mapping[int, RoundTiming],
    trained: Mapping[int, Stage],
    chained: bool,
) -> dict[str, Stage]:
    """What comes after training. rounds, trained: what a round takes, and the stage that it is, for
    each round."""
    plan = experiment.plan
    audit = experiment.audit_settings
    size = experiment.engine.size
    shared = count_shared_rounds(plan.method, audit.federation_rounds)
    replays = federation_count(experiment, attacks) - 1  # one of them is the run itself
    once = _add(*(stage for t, stage in trained.items() if t < shared))
    later = sum(stage.cpu for t, stage in trained.items() if t >= shared)
    searches = [
        *_search_seconds(experiment, attacks),
        *_distiller_seconds(experiment, attacks),
    ]
    has_slow_tests = any(m.sensitivity_kind != "rows" for m in plan.mechanisms.values())
    tests = audit.guarantee.slow_runs * has_slow_tests
    searched = sum(searches) + SIGNAL_SECONDS * replay_count(experiment, attacks)
    federations = Stage(0.0, 0.0)
    if replays > 0:
        federations = _add(once, spread_tasks(later, replays, size))
    longest_search = max(searches, default=0.0)
    tested = TEST_SECONDS * tests
    return {
        "worlds": _replay_stage(experiment, attacks, rounds, chained),
        "other clients": _other_clients_stage(experiment, attacks, rounds, chained),
        "federations": federations,
        "attacks": Stage(searched, max(searched / size, longest_search)),
        "guarantee tests": Stage(tested, tested / size),
    }


def _add(*stages: Stage) -> Stage:
    return Stage(sum(stage.cpu for stage in stages), sum(stage.wall for stage in stages))


def _worker_start(engine: Engine, run: RunSettings) -> Stage:
    """The process that workers are forked from loads everything while this one does, if it starts
    beforehand."""
    if engine.kind in IN_THIS_PROCESS:
        return Stage(0.0, 0.0)
    if engine.kind == "processes" and can_fork(run.device):
        waiting = 0.0 if starts_beforehand(run.preset) else FORKSERVER_SECONDS
        return Stage(FORKSERVER_SECONDS + FORK_SECONDS * engine.size, FORK_SECONDS + waiting)
    return spread_tasks(WORKER_SECONDS, engine.size, engine.size)


def _replay_stage(
    experiment: Experiment,
    attacks: Mapping[str, Attack],
    rounds: Mapping[int, RoundTiming],
    chained: bool,
) -> Stage:
    """Replays of the audited client: of some rounds of each phase, of all where it remembers."""
    plan = experiment.plan
    audited = {t: timing.audited for t, timing in rounds.items()}
    seconds_of_replay = _seconds_of_read_rounds(experiment, audited, chained)
    replays = replay_count(experiment, attacks) - 1
    wide = plan.method.audit_hooks.shares_work or prefers_wide_network(
        plan.method, plan.problem, replays
    )
    if wide:
        group = min(plan.method.audit_hooks.worlds_per_pass, max(replays, 1))
    else:
        group = 1
    together = plan.method.audit_hooks.shares_work and not chained
    if not wide or plan.mechanisms:
        share = 1.0
    elif together:
        share = SHARED_SHARE
    else:
        share = WIDE_SHARE
    return spread_tasks(
        seconds_of_replay * share * group, math.ceil(replays / group), experiment.engine.size
    )


def _seconds_of_read_rounds(
    experiment: Experiment, seconds: Mapping[int, float], chained: bool
) -> float:
    """What the rounds that an audit reads take, all together.

    seconds: of every round; chained: earlier rounds are passed too."""
    plan = experiment.plan
    phases = dict[str, list[float]]()
    for t, seconds_of_round in seconds.items():
        phase = plan.method.audit_hooks.phase(t)
        phases.setdefault(phase, []).append(seconds_of_round)
    if chained:
        often = len(seconds)
    else:
        often = min(experiment.audit_settings.rounds, most_kept_rounds(plan))
    total = 0.0
    for took in phases.values():
        mean = sum(took) / len(took)
        total += mean * min(often, len(took))
    return total


def _other_clients_stage(
    experiment: Experiment,
    attacks: Mapping[str, Attack],
    rounds: Mapping[int, RoundTiming],
    chained: bool,
) -> Stage:
    """Uploads of the other clients, computed again where an attack compares with them."""
    plan = experiment.plan
    is_read = any(attack.reads_other_clients for attack in attacks.values())
    cannot_be_repeated = chained and plan.fraction < 1
    if not is_read or plan.trust.is_summed or cannot_be_repeated:
        return Stage(0.0, 0.0)
    others = {}
    for t in rounds:
        others[t] = sum(client != plan.victim for client in plan.participants(t))
    size = experiment.engine.size
    stages = {t: spread_tasks(timing.usual, others[t], size) for t, timing in rounds.items()}
    cpu = {t: stage.cpu for t, stage in stages.items()}
    wall = {t: stage.wall for t, stage in stages.items()}
    return Stage(
        _seconds_of_read_rounds(experiment, cpu, chained),
        _seconds_of_read_rounds(experiment, wall, chained),
    )


def _distiller_seconds(experiment: Experiment, attacks: Mapping[str, Attack]) -> list[float]:
    """CPU seconds of each attack that distils sets of its own: one set of each algorithm is timed,
    its long loops cut short."""
    plan = experiment.plan
    sent = set(plan.method.uploads.values())
    asked = [attack for attack in attacks.values() if isinstance(attack, DistillerInference)]
    x = experiment.test_records.x[:TIMED_TEST_RECORDS]
    y = experiment.test_records.y[:TIMED_TEST_RECORDS]
    seconds = []
    for attack in asked:
        if not sent & attack.surfaces or not is_image(plan.problem.shape):
            continue
        per_class = max(1, plan.method.audit_hooks.images_per_class())
        with (
            truncate_loops(DISTILLER_LOOP_SECONDS) as loops,
            torch_threads(experiment.engine.threads),
        ):
            began = loops.cpu_seconds()
            for distil in attack.distillers.values():
                distil(x, y, plan.problem.classes, per_class, torch.Generator().manual_seed(0))
            took = loops.cpu_seconds() - began
        seconds.append(took * attack.sets)
    return seconds


def _search_seconds(experiment: Experiment, attacks: Mapping[str, Attack]) -> list[float]:
    """CPU seconds of each attack that searches, once for each surface that it reads of what the
    method sends; of one that solves its problems as one batch, once."""
    method = experiment.plan.method
    shard = experiment.shards[experiment.plan.victim]
    sent = {*method.uploads.values(), *method.broadcasts.values()}
    local = int(method.audit_hooks.settings(len(shard.train)).get("local_steps") or 1)
    passes = list[float]()
    for attack in attacks.values():
        each_step = STEPS_PER_SEARCH_STEP
        if isinstance(attack, GradientInversion):
            each_step += STEPS_PER_LOCAL_STEP * local
        searches = len(sent & attack.surfaces)
        if type(attack).run_each is not Attack.run_each:
            searches = min(searches, 1)
        length = longest_search(attack)
        if length:
            passes += [each_step * length] * searches
    if not passes:
        return []
    seconds = time_pass(experiment)
    return [seconds * count for count in passes]


def time_pass(experiment: Experiment) -> float:
    """CPU seconds of a pass forward and back of the classifier on a few records; of a small one
    where none is trained together."""
    plan = experiment.plan
    train = experiment.shards[experiment.plan.victim].train
    spec = ModelSpec(width=SMALL_WIDTH)
    hooks = method_of_client(plan.method, plan.victim).audit_hooks
    model = hooks.classifier(plan.problem) or build(spec, plan.problem.shape, plan.problem.classes)
    # nothing else has values
    state = {name: torch.full_like(value, 0.01) for name, value in model.state_dict().items()}
    learned = [state[name].requires_grad_() for name, _ in model.named_parameters()]
    records = train.take(range(min(len(train), PASS_RECORDS)))
    times = list[float]()
    with torch_threads(experiment.engine.threads):
        while len(times) < 2 or (sum(times) < PASS_SECONDS and len(times) < PASSES):
            began = time.process_time()
            loss = functional.cross_entropy(functional_call(model, state, (records.x,)), records.y)
            torch.autograd.grad(loss, learned, allow_unused=True)
            times.append(time.process_time() - began)
    return min(times)


def longest_search(attack: Any) -> int:
    """Steps of an attack's longest search; 0 where it does not search."""
    held = vars(attack) if is_dataclass(attack) else {}
    lengths = [v for name, v in held.items() if name in SEARCH_LENGTHS and isinstance(v, int)]
    return max([*lengths, *map(longest_search, held.values())], default=0)


def trains_by_own_code(experiment: Experiment) -> bool:
    """Whether rounds run a user's own code, of which no loop can be cut short."""
    method = experiment.plan.method
    return isinstance(method, OwnTraining) or not type(method).__module__.startswith("privdd.")


def describe_estimate(cost: CostEstimate | None) -> str:
    """For a run above a minute; "" for shorter ones, and where nothing was timed."""
    if cost is None or cost.wall_seconds < MIN_ANNOUNCED_SECONDS:
        return ""
    time = format_seconds(cost.wall_seconds)
    memory = _size_text(cost.needs.memory)
    return (
        f"estimated {time} on {engine_in_words(cost.engine)}, {memory} at least; --dry-run "
        "for details"
    )

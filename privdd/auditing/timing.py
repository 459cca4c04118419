"""Timing on this machine: are replays faster one by one or vectorised, and what does a round of clients and server take?

The first is measured once per machine and then remembered, for the two ways round differently; the second is measured
on two clients and the first steps of each long loop.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from privdd.core.loop_timing import LOOP_ALLOWANCE, TimeLimitExceeded, TruncatedLoops, cpu_time_limit, truncate_loops
from privdd.core.types import Problem, Records
from privdd.core.user_folders import CACHE_VARIABLE, cache_folder
from privdd.federated.evaluation import measure_accuracy
from privdd.federated.experiment import Experiment
from privdd.federated.method import Method
from privdd.federated.simulation import ClientTask, Plan, Progress, StepResult, run_round, start_training
from privdd.runtime.engine import Engine
from privdd.runtime.files import DamagedRun, read_json, write_json
from privdd.runtime.workers import torch_threads

# --- autotune ----------------------------------------------------------------------------------
# Does this machine train shadow models faster one by one, or many at once as one wide network?
#
# Measured once per machine and then remembered. A world is one replay of the audited client, the source of one
# shadow model. The two ways round differently, so the same seed gives the same bits only if the same way is used.
# Measurements are therefore kept in a per-machine file, and each run's choice in its run folder: a noisy second
# measurement cannot overrule the first, and the choice does not depend on the engine.


ReplayMode = Literal["loop", "vectorised"]
MIN_SPEEDUP = 1.3  # how much faster the wide network must be; a smaller margin could be reversed on a busy machine
MIN_TOTAL_STEPS = 1000  # training steps summed over all models: with fewer, the probe costs more than it saves
PROBE_SECONDS = 1.5  # target length of a probe, so that it ends within two
PROBE_REPEATS = 5  # timings per probe, if there is time
MAX_STEP_SECONDS = 0.05  # seconds per step above which batching gains nothing
NO_BATCHED_FORM = "the method, its network or this round has no batched form"


@dataclass(frozen=True)
class TrainingChoice:
    """How the replays are trained. ratio: the loop's time over the wide network's, None if not measured."""

    training: ReplayMode
    why: str
    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.training not in get_args(ReplayMode):
            raise ValueError(f"training={self.training!r}: allowed are {', '.join(get_args(ReplayMode))}")
        if self.ratio is not None and not (math.isfinite(self.ratio) and self.ratio > 0):
            raise ValueError(f"ratio={self.ratio!r}: a finite number above 0 is needed")


@dataclass(frozen=True)
class SpeedTrial:
    """The two ways to replay worlds, ready to be timed.

    alone: replays one world; first: replays the first group in one batch and keeps the result (None if the
    method has no batched form); again: replays that group once more, without the kept result; group: worlds
    per batch; worlds: how many must be replayed in all; steps: training steps per world, None if unknown;
    key: everything their speed depends on; always: batching saves work, so nothing is measured.
    """

    alone: Callable[[], object]
    first: Callable[[], object]
    again: Callable[[], object]
    group: int
    worlds: int
    steps: int | None
    key: str
    device: str = "cpu"
    always: bool = False


def choose_training(asked: str, trial: SpeedTrial, record: Path) -> TrainingChoice:
    """Choose how worlds are replayed; the choice is kept in the file ``record``."""
    if asked == "loop" or not trial.group:
        return TrainingChoice("loop", "as asked for" if trial.group else "nothing to replay")
    few = not trial.always and trial.steps is not None and trial.steps * trial.worlds < MIN_TOTAL_STEPS
    if asked == "auto" and few:
        return TrainingChoice("loop", f"{(trial.steps or 0) * trial.worlds} steps in all, too few to measure for")
    if trial.always or asked == "vectorised":
        if trial.first() is None:
            return TrainingChoice("loop", NO_BATCHED_FORM)
        return TrainingChoice("vectorised", "replays share their work" if trial.always else "as asked for")
    kept = _read_choice(record)
    if kept is None:
        kept = _choose_by_measurement(trial)
        write_json(record, asdict(kept))
    return kept


def _choose_by_measurement(trial: SpeedTrial) -> TrainingChoice:
    ratio = speed_ratio(trial)
    choice = decide_by_ratio(ratio, trial.worlds, trial.group, trial.device)
    if choice.training == "vectorised" and trial.first() is None:  # measured where the method has the form
        return TrainingChoice("loop", NO_BATCHED_FORM)
    return choice


def decide_by_ratio(ratio: float | None, worlds: int, group: int, device: str = "cpu") -> TrainingChoice:
    """Vectorised if clearly faster when all cores are in use, which a few wide networks may not keep busy."""
    if ratio is None:
        return TrainingChoice("loop", "one by one: batched rounds do not exist here, or take too long to measure")
    lanes = max(1, (os.cpu_count() or 1) // torch.get_num_threads()) if device == "cpu" else 1
    filled = min(lanes, math.ceil(worlds / group)) / min(lanes, max(1, worlds))
    faster = ratio * filled >= MIN_SPEEDUP
    return TrainingChoice(
        "vectorised" if faster else "loop", f"measured: {ratio * filled:.2f} times the loop's speed", ratio
    )


# --- what is remembered ---------------------------------------------------------------------------


def speed_key(method: Method, problem: Problem, settings: Mapping[str, Any], records: int, group: int) -> str:
    """A key of everything that the speed of the two ways depends on."""
    parts = [
        f"torch {torch.__version__}", problem.device, f"{torch.get_num_threads()} threads", f"{os.cpu_count()} cores",
        type(method).__name__, " ".join(repr(method.audit_hooks.classifier(problem)).split()), f"shape {problem.shape}",
        f"batch {min(int(settings.get('batch_size', records)), records)}",
        f"momentum {bool(settings.get('momentum'))}", f"{group} worlds",
    ]  # fmt: skip
    return " | ".join(parts)


def speed_ratio(trial: SpeedTrial) -> float | None:
    """This machine's remembered ratio, else a fresh measurement, which is stored if possible."""
    folder = cache_folder(CACHE_VARIABLE)
    if folder is None:
        return measure_ratio(trial)
    file = ratio_file(folder, trial.key)
    known = _read_ratio(file, trial.key)
    if known is None:
        mine: dict[str, Any] = {"key": trial.key, "ratio": measure_ratio(trial)}
        with contextlib.suppress(OSError):
            _write_once(file, mine)
        known = _read_ratio(file, trial.key) or mine  # another run may have stored one first: use that
    ratio: float | None = known["ratio"]
    return ratio


def ratio_file(folder: Path, key: str) -> Path:
    """The file of one measurement: one each, so that concurrent runs cannot overwrite each other's."""
    return folder / f"training-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}.json"


def _write_once(file: Path, content: dict[str, Any]) -> None:
    """Write atomically, and only if no other run has written a readable file already."""
    own = file.with_name(f"{file.stem}-{os.getpid()}.json")
    write_json(own, content)
    try:
        if file.exists() and _read_ratio(file, content["key"]) is None:
            file.unlink()  # damaged
        os.link(own, file)
    except FileExistsError:
        pass
    finally:
        own.unlink()


def _read_ratio(file: Path, key: str) -> dict[str, Any] | None:
    """The measurement stored for ``key``, None if the file is missing or unreadable."""
    with contextlib.suppress(DamagedRun):
        content = read_json(file)
        if isinstance(content, dict) and content.get("key") == key and "ratio" in content:
            ratio = content["ratio"]
            if ratio is None or (_is_finite_number(ratio) and ratio > 0):
                return content
    return None


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _read_choice(record: Path) -> TrainingChoice | None:
    with contextlib.suppress(DamagedRun, TypeError, ValueError):
        return TrainingChoice(**read_json(record))
    return None


# --- the probe ------------------------------------------------------------------------------------


def measure_ratio(trial: SpeedTrial, seconds: float = PROBE_SECONDS) -> float | None:
    """Time of the loop over time of the batched replay, per world: both are timed alternately, the best of each.

    None if a single step takes so long that batching gains nothing, or if there is no batched form.
    """
    began = time.perf_counter()
    alone = [_time_work(trial.alone, trial.device)]  # the first call is the slowest
    if trial.steps and alone[0] / trial.steps > MAX_STEP_SECONDS:
        alone.append(_time_work(trial.alone, trial.device))
    if trial.steps and min(alone) / trial.steps > MAX_STEP_SECONDS:
        return None
    results: list[object] = []
    together = [_time_work(lambda: results.append(trial.first()), trial.device)]
    if results == [None]:
        return None
    for _ in range(PROBE_REPEATS):
        spent = time.perf_counter() - began
        if spent + alone[-1] + together[-1] > seconds:
            break
        alone.append(_time_work(trial.alone, trial.device))
        together.append(_time_work(trial.again, trial.device))
    return trial.group * min(alone) / min(together)


def _time_work(work: Callable[[], object], device: str) -> float:
    """CPU seconds if the work runs on one thread (so that other processes do not count), else wall-clock seconds."""
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return max(clock() - began, 1e-9)


# --- two clients -------------------------------------------------------------------------------
# What one round's client work takes, from two clients: one of usual size and the audited one. What the usual one
# sends is handed to the server in all others' names, so that the server has its own work.


MAX_ROUND_SECONDS = (
    6.0  # CPU seconds after which a client's round is stopped that has not reached a loop of counted turns
)
MAX_FIRST_CLIENT_SECONDS = 4.0  # CPU seconds of timing one client, from which the other is not timed
RECORD_SHARES = (1, 16, 256)  # a client that was stopped is timed on one in so many of its records


class RoundTooLong(Exception):
    """A client's round takes longer than ``MAX_ROUND_SECONDS`` on so few records too."""


@dataclass(frozen=True)
class TwoClientEngine(Engine):
    """An engine that runs two clients' tasks. took: client -> CPU seconds of its latest round; inside: of all that was
    run here; share: the records of a client, over those that it was timed on."""

    part: TruncatedLoops = field(default_factory=lambda: TruncatedLoops(0.0))
    victim: int = 0
    took: dict[int, float] = field(default_factory=dict)
    inside: list[float] = field(default_factory=list)
    share: list[int] = field(default_factory=lambda: [1])

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Raises TooLong."""
        work: list[ClientTask] = list(items)
        began, clock = self.part.cpu_seconds(), time.process_time()
        usual = usual_task(work)
        self.took.clear()
        told = {usual.client: self._time_client(fn, usual)}
        for task in work:
            if task.client == self.victim != usual.client and time.process_time() - clock < MAX_FIRST_CLIENT_SECONDS:
                told[task.client] = self._time_client(fn, task)
        self.took.setdefault(self.victim, self.took[usual.client])
        self.inside.append(self.part.cpu_seconds() - began)
        yield from (told.get(task.client) or answer_of_client(told[usual.client], task.client) for task in work)

    def usual_seconds(self) -> float:
        """CPU seconds of the usual client's latest round."""
        return next(iter(self.took.values()))

    def _time_client(self, fn: Callable[[ClientTask], StepResult], task: ClientTask) -> StepResult:
        """What a client answers; on fewer of its records where it takes long. ``took`` is as on all of them."""
        for share in RECORD_SHARES[RECORD_SHARES.index(self.share[0]) :]:
            self.share[0] = share
            if one := self._run_timed(fn, task, share):
                grows = share > 1 and one.turns and one.turns > 2 * self._count_turns(fn, task)
                self.took[task.client] = one.unlooped * share + one.looped * (share if grows else 1)
                return one.answer
        raise RoundTooLong

    def _count_turns(self, fn: Callable[[ClientTask], StepResult], task: ClientTask) -> int:
        """Turns of all loops on the fewest records: as many as on more of them where they are steps, not epochs."""
        fewest = self._run_timed(fn, task, RECORD_SHARES[-1])
        return fewest.turns if fewest else 0

    def _run_timed(self, fn: Callable[[ClientTask], StepResult], task: ClientTask, share: int) -> TimedAnswer | None:
        """One in ``share`` of the records; None where it was stopped."""
        fewer = replace(task, shard=replace(task.shard, train=thin_records(task.shard.train, share)))
        part = self.part
        began, looped, counted = part.cpu_seconds(), part.looped, part.turns
        try:
            with torch_threads(self.threads), cpu_time_limit(MAX_ROUND_SECONDS, unless=lambda: part.turns > counted):
                answer = fn(fewer)
        except TimeLimitExceeded:
            return None
        looped = part.looped - looped
        return TimedAnswer(answer, part.cpu_seconds() - began - looped, looped, part.turns - counted)


@dataclass(frozen=True)
class TimedAnswer:
    """A client's answer, and CPU seconds outside and inside of loops whose turns are counted, and these turns."""

    answer: StepResult
    unlooped: float
    looped: float
    turns: int


def usual_task(work: list[ClientTask]) -> ClientTask:
    """Of the client whose number of records is next to the mean."""
    mean = sum(len(task.shard.train) for task in work) / len(work)
    return min(work, key=lambda task: (abs(len(task.shard.train) - mean), task.client))


def thin_records(records: Records, share: int) -> Records:
    """One in so many of the records, at even distances."""
    return records if share == 1 else records.take(list(range(0, len(records), share)))


def answer_of_client(answer: StepResult, client: int) -> StepResult:
    """What one client sent and keeps, as another's."""
    received, rows, memory = answer
    return replace(received, client=client), [replace(row, client=client) for row in rows], memory


# --- part rounds -------------------------------------------------------------------------------
# What rounds take, from a part of a few: two clients, and the first turns of each long loop, theirs and the server's.
#
# Rounds that do the same work are of one kind: of each its first is timed, where there is time its second too, which no
# longer computes what is kept, and the run's last, which may publish what takes longer than all before.


MAX_OPTIONAL_SECONDS = 20.0  # CPU seconds that are taken before rounds which only make the price better are left out
TIMED_TEST_IMAGES = 250  # test images that accuracy is timed on


@dataclass(frozen=True)
class RoundTiming:
    """CPU seconds of a round: of a usual client's work, of the audited client's, of the server's."""

    usual: float
    victim: float
    server: float

    def seconds_for(self, clients: int) -> float:
        return self.usual * clients + self.server


@dataclass(frozen=True)
class RoundTimings:
    """What was timed, by round. opening: CPU seconds before the first; left: loops that were left early; share: over
    the records of a client, those that it was timed on; least: a client's round did not end, its work takes more;
    chained: what the audited client sends depends on what it kept, so that a replay runs its earlier rounds too."""

    timed: dict[int, RoundTiming]
    opening: float = 0.0
    left: int = 0
    share: int = 1
    least: bool = False
    chained: bool = False

    def timing_of(self, plan: Plan, t: int) -> RoundTiming:
        """A round's cost: its own, or that of the latest of its kind that was timed, else of the latest at all."""
        known = [s for s in self.timed if s <= t] or [min(self.timed)]
        alike = [s for s in known if plan.method.audit_hooks.workload(s) == plan.method.audit_hooks.workload(t)]
        return self.timed[max(alike or known)] if t not in self.timed else self.timed[t]


def rounds_to_time(plan: Plan) -> dict[int, bool]:
    """Round -> whether a price needs it: the first of each kind, and, where there is time, the second and the last.

    Rounds from which everybody drops out have no work to time.
    """
    found: dict[str, list[int]] = {}
    taken = [t for t in range(plan.method.rounds) if plan.participants(t)]
    for t in taken:
        found.setdefault(plan.method.audit_hooks.workload(t), []).append(t)
    more = {t: False for of in found.values() for t in of[1:2]} | {taken[-1]: False}
    return dict(sorted((more | {of[0]: True for of in found.values()}).items()))


def time_rounds(experiment: Experiment, say: Callable[[str], None]) -> RoundTimings:
    """Times them. say: is told of each one."""
    plan, began = experiment.plan, time.process_time()
    timed: dict[int, RoundTiming] = {}
    with truncate_loops(LOOP_ALLOWANCE) as part, torch_threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself warns
        engine = TwoClientEngine(threads=1, part=part, victim=plan.victim)
        progress = start_training(plan, experiment.new_ledger())
        opening = part.cpu_seconds() - began
        for t, needed in rounds_to_time(plan).items():
            if not needed and time.process_time() - began > MAX_OPTIONAL_SECONDS:
                continue
            try:
                progress, timed[t] = _time_round(experiment, progress_at_round(progress, t), engine, part)
            except RoundTooLong:
                timed[t] = RoundTiming(MAX_ROUND_SECONDS, MAX_ROUND_SECONDS, 0.0)
                return RoundTimings(timed, opening, part.left, engine.share[0], least=True)
            say(f"round {t + 1} of {plan.method.rounds}, {plan.method.audit_hooks.phase(t)}")
    chained = any(plan.method.audit_hooks.remembers(t, progress.memories.get(plan.victim, {})) for t in timed)
    return RoundTimings(timed, opening, part.left, engine.share[0], chained=chained)


def progress_at_round(progress: Progress, t: int) -> Progress:
    """``progress`` as before round ``t``, for a server that counts its rounds too ("round" in its state)."""
    counters = {n: torch.full_like(v, t) for n, v in progress.server.items() if n.rpartition("/")[2] == "round"}
    return replace(progress, round=t, server={**progress.server, **counters})


def _time_round(
    experiment: Experiment, progress: Progress, engine: TwoClientEngine, part: TruncatedLoops
) -> tuple[Progress, RoundTiming]:
    plan, began = experiment.plan, part.cpu_seconds()
    engine.inside.clear()
    moved = run_round(plan, progress, experiment.shards, engine)[0]
    server = part.cpu_seconds() - began - sum(engine.inside)
    return moved, RoundTiming(
        engine.usual_seconds(), engine.took[plan.victim], max(server, 0.0) + _time_accuracy(experiment, moved)
    )


def _time_accuracy(experiment: Experiment, progress: Progress) -> float:
    """CPU seconds of accuracy after a round, from some of the test images."""
    test, shards = experiment.test_records, experiment.shards
    few = [
        replace(shard, test=shard.test.take(list(range(min(TIMED_TEST_IMAGES, len(shard.test))))))
        for shard in shards[:1]
    ]
    began = time.process_time()
    measure_accuracy(experiment.plan, progress, test.take(list(range(min(TIMED_TEST_IMAGES, len(test))))), few)
    took = time.process_time() - began
    if experiment.plan.method.audit_hooks.accuracy_kind == "global":
        return took * max(1.0, len(test) / TIMED_TEST_IMAGES)
    return took * sum(len(shard.test) for shard in shards) / max(len(few[0].test), 1)

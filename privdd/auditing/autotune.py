"""Does this machine train shadow models faster one by one, or many at once as one wide network?

Measured once per machine and then remembered. A world is one replay of the audited client, the source of one
shadow model. The two ways round differently, so the same seed gives the same bits only if the same way is used.
Measurements are therefore kept in a per-machine file, and each run's choice in its run folder: a noisy second
measurement cannot overrule the first, and the choice does not depend on the engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from privdd.core.folders import CACHE, cache_folder
from privdd.core.types import Problem
from privdd.federated.method import Method
from privdd.runtime.files import DamagedRun, read_json, write_json

Training = Literal["loop", "vectorised"]
CLEAR = 1.3  # how much faster the wide network must be; a smaller margin could be reversed on a busy machine
LEAST = 1000  # training steps summed over all models: with fewer, the probe costs more than it saves
SECONDS = 1.5  # target length of a probe, so that it ends within two
REPEATS = 5  # timings per probe, if there is time
LONGEST = 0.05  # seconds per step above which batching gains nothing
NO_FORM = "the method, its network or this round has no batched form"


@dataclass(frozen=True)
class Choice:
    """How the replays are trained. ratio: the loop's time over the wide network's, None if not measured."""

    training: Training
    why: str
    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.training not in get_args(Training):
            raise ValueError(f"training={self.training!r}: allowed are {', '.join(get_args(Training))}")
        if self.ratio is not None and not (math.isfinite(self.ratio) and self.ratio > 0):
            raise ValueError(f"ratio={self.ratio!r}: a finite number above 0 is needed")


@dataclass(frozen=True)
class Trial:
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


def choose(asked: str, trial: Trial, record: Path) -> Choice:
    """Choose how worlds are replayed; the choice is kept in the file ``record``."""
    if asked == "loop" or not trial.group:
        return Choice("loop", "as asked for" if trial.group else "nothing to replay")
    few = not trial.always and trial.steps is not None and trial.steps * trial.worlds < LEAST
    if asked == "auto" and few:
        return Choice("loop", f"{(trial.steps or 0) * trial.worlds} steps in all, too few to measure for")
    if trial.always or asked == "vectorised":
        if trial.first() is None:
            return Choice("loop", NO_FORM)
        return Choice("vectorised", "replays share their work" if trial.always else "as asked for")
    kept = _read_choice(record)
    if kept is None:
        kept = _measured(trial)
        write_json(record, asdict(kept))
    return kept


def _measured(trial: Trial) -> Choice:
    ratio = ratio_of(trial)
    choice = decide(ratio, trial.worlds, trial.group, trial.device)
    if choice.training == "vectorised" and trial.first() is None:  # measured where the method has the form
        return Choice("loop", NO_FORM)
    return choice


def decide(ratio: float | None, worlds: int, group: int, device: str = "cpu") -> Choice:
    """Vectorised if clearly faster when all cores are in use, which a few wide networks may not keep busy."""
    if ratio is None:
        return Choice("loop", "one by one: batched rounds do not exist here, or take too long to measure")
    lanes = max(1, (os.cpu_count() or 1) // torch.get_num_threads()) if device == "cpu" else 1
    filled = min(lanes, math.ceil(worlds / group)) / min(lanes, max(1, worlds))
    faster = ratio * filled >= CLEAR
    return Choice("vectorised" if faster else "loop", f"measured: {ratio * filled:.2f} times the loop's speed", ratio)


# --- what is remembered ---------------------------------------------------------------------------


def key_of(method: Method, problem: Problem, settings: Mapping[str, Any], records: int, group: int) -> str:
    """A key of everything that the speed of the two ways depends on."""
    parts = [
        f"torch {torch.__version__}", problem.device, f"{torch.get_num_threads()} threads", f"{os.cpu_count()} cores",
        type(method).__name__, " ".join(repr(method.classifier(problem)).split()), f"shape {problem.shape}",
        f"batch {min(int(settings.get('batch_size', records)), records)}",
        f"momentum {bool(settings.get('momentum'))}", f"{group} worlds",
    ]  # fmt: skip
    return " | ".join(parts)


def ratio_of(trial: Trial) -> float | None:
    """This machine's remembered ratio, else a fresh measurement, which is stored if possible."""
    folder = cache_folder(CACHE)
    if folder is None:
        return measure(trial)
    file = file_of(folder, trial.key)
    known = _known(file, trial.key)
    if known is None:
        mine: dict[str, Any] = {"key": trial.key, "ratio": measure(trial)}
        with contextlib.suppress(OSError):
            _create(file, mine)
        known = _known(file, trial.key) or mine  # another run may have stored one first: use that
    ratio: float | None = known["ratio"]
    return ratio


def file_of(folder: Path, key: str) -> Path:
    """The file of one measurement: one each, so that concurrent runs cannot overwrite each other's."""
    return folder / f"training-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}.json"


def _create(file: Path, content: dict[str, Any]) -> None:
    """Write atomically, and only if no other run has written a readable file already."""
    own = file.with_name(f"{file.stem}-{os.getpid()}.json")
    write_json(own, content)
    try:
        if file.exists() and _known(file, content["key"]) is None:
            file.unlink()  # damaged
        os.link(own, file)
    except FileExistsError:
        pass
    finally:
        own.unlink()


def _known(file: Path, key: str) -> dict[str, Any] | None:
    """The measurement stored for ``key``, None if the file is missing or unreadable."""
    with contextlib.suppress(DamagedRun):
        content = read_json(file)
        if isinstance(content, dict) and content.get("key") == key and "ratio" in content:
            ratio = content["ratio"]
            if ratio is None or (_number(ratio) and ratio > 0):
                return content
    return None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _read_choice(record: Path) -> Choice | None:
    with contextlib.suppress(DamagedRun, TypeError, ValueError):
        return Choice(**read_json(record))
    return None


# --- the probe ------------------------------------------------------------------------------------


def measure(trial: Trial, seconds: float = SECONDS) -> float | None:
    """Time of the loop over time of the batched replay, per world: both are timed alternately, the best of each.

    None if a single step takes so long that batching gains nothing, or if there is no batched form.
    """
    began = time.perf_counter()
    alone = [_timed(trial.alone, trial.device)]  # the first call is the slowest
    if trial.steps and alone[0] / trial.steps > LONGEST:
        alone.append(_timed(trial.alone, trial.device))
    if trial.steps and min(alone) / trial.steps > LONGEST:
        return None
    results: list[object] = []
    together = [_timed(lambda: results.append(trial.first()), trial.device)]
    if results == [None]:
        return None
    for _ in range(REPEATS):
        spent = time.perf_counter() - began
        if spent + alone[-1] + together[-1] > seconds:
            break
        alone.append(_timed(trial.alone, trial.device))
        together.append(_timed(trial.again, trial.device))
    return trial.group * min(alone) / min(together)


def _timed(work: Callable[[], object], device: str) -> float:
    """CPU seconds if the work runs on one thread (so that other processes do not count), else wall-clock seconds."""
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return max(clock() - began, 1e-9)

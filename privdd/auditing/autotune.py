"""Whether this machine trains many worlds faster one by one or as one wide network: measured once, remembered.

The two ways round differently, so the same seed gives the same bits only where the same way is taken.
Measurements are therefore kept in a file of the machine and choices in the run folder: noise in a
second measurement cannot turn the first one over, and no engine changes the choice.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from privdd.core.folders import CACHE, cache_folder
from privdd.methods.batched import train_alone, train_together
from privdd.methods.fedavg import FedAvg, Turn
from privdd.runtime.run_folder import DamagedRun, read_json, write_json
from privdd.training.local import step_count

Training = Literal["loop", "vectorised"]
Asked = Literal["auto", "loop", "vectorised"]
TOGETHER = 8  # worlds of one wide network: 16 are hardly faster, and more workers get one
CLEAR = 1.3  # how much faster the wide network must be; less could turn over on a busy machine
LEAST = 1000  # steps of single models in all: where there are fewer, the probe would cost more than it saves
SECONDS = 1.5  # of a probe: its aim, so that it ends within two
REPEATS, STEPS = 5, 8  # of a probe where there is time


def check_training(asked: str) -> None:
    """Raises ValueError for anything but auto, loop and vectorised."""
    if asked not in get_args(Asked):
        raise ValueError(f"audit.training={asked}: allowed are {', '.join(get_args(Asked))}")


@dataclass(frozen=True)
class Choice:
    """How worlds are trained. ratio: the loop's time over the wide network's, None where not measured."""

    training: Training
    why: str
    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.training not in get_args(Training):
            raise ValueError(f"training={self.training!r}: allowed are {', '.join(get_args(Training))}")
        if self.ratio is not None and not (math.isfinite(self.ratio) and self.ratio > 0):
            raise ValueError(f"ratio={self.ratio!r}: a finite number above 0 is needed")


def choose(asked: str, method: Any, turns: Sequence[Turn] | None, worlds: int, rounds: int, record: Path) -> Choice:
    """The way that ``worlds`` worlds of a method are trained, and kept in ``record`` where it was measured.

    turns: of the first worlds that would train together, None where the method has no wide form; rounds:
    how many each world trains. Raises ValueError for an unknown way.
    """
    check_training(asked)
    if turns is None:
        return Choice("loop", "the method, its network or this round has no vectorised form")
    if asked != "auto":
        return Choice("vectorised" if asked == "vectorised" else "loop", "as asked for")
    each = step_count(len(turns[0].shard.train), method.batch_size, method.local_epochs)
    if each * rounds * worlds < LEAST:
        return Choice("loop", f"{each * rounds * worlds} steps in all, too few to measure for")
    kept = _read_choice(record)
    if kept is None:
        kept = decide(ratio_of(method, turns), worlds, turns[0].ctx.problem.device)
        write_json(record, asdict(kept))
    return kept


def decide(ratio: float | None, worlds: int, device: str = "cpu") -> Choice:
    """Vectorised where clearly faster on all cores of the machine, which a few wide networks may not fill."""
    if ratio is None:
        return Choice("loop", "one step takes too long to measure, and such networks gain nothing")
    lanes = max(1, (os.cpu_count() or 1) // torch.get_num_threads()) if device == "cpu" else 1
    filled = min(lanes, math.ceil(worlds / TOGETHER)) / min(lanes, max(1, worlds))
    faster = ratio * filled >= CLEAR
    return Choice("vectorised" if faster else "loop", f"measured: {ratio * filled:.2f} times the loop's speed", ratio)


# --- what is remembered ---------------------------------------------------------------------------


def key_of(method: FedAvg, turns: Sequence[Turn]) -> str:
    """Everything that the speed of both ways depends on."""
    first = turns[0]
    parts = [
        f"torch {torch.__version__}", first.ctx.problem.device, f"{torch.get_num_threads()} threads",
        f"{os.cpu_count()} cores", type(method).__name__, repr(method.model), f"shape {first.shard.shape}",
        f"{first.shard.classes} classes", f"batch {min(method.batch_size, max(len(t.shard.train) for t in turns))}",
        f"momentum {bool(method.momentum)}", f"{len(turns)} worlds",
    ]  # fmt: skip
    return " | ".join(parts)


def ratio_of(method: FedAvg, turns: Sequence[Turn]) -> float | None:
    """The remembered ratio of this machine, else a measured one, remembered where that is possible."""
    key, folder = key_of(method, turns), cache_folder(CACHE)
    if folder is None:
        return measure(method, turns)
    file = file_of(folder, key)
    known = _known(file, key)
    if known is None:
        mine: dict[str, Any] = {"key": key, "ratio": measure(method, turns)}
        with contextlib.suppress(OSError):
            _create(file, mine)
        known = _known(file, key) or mine  # another run may have been quicker: its measurement counts
    ratio: float | None = known["ratio"]
    return ratio


def file_of(folder: Path, key: str) -> Path:
    """Each measurement has its own file, so that runs side by side cannot undo each other's."""
    return folder / f"training-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}.json"


def _create(file: Path, content: dict[str, Any]) -> None:
    """Written whole or not at all, and only where no other run wrote a readable one before."""
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
    """What a file remembers of ``key``; one that cannot be read is as good as absent."""
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


def measure(method: FedAvg, turns: Sequence[Turn], seconds: float = SECONDS) -> float | None:
    """Time of the loop over time of the wide network, per step of one model; in turns, the best of each.

    None where the steps of one round of both would take more than ``seconds``.
    """
    began, device = time.perf_counter(), turns[0].ctx.problem.device
    once = _timed(lambda: train_alone(method, turns[0], 1), device)  # the first call is the slowest
    once = min(once, _timed(lambda: train_alone(method, turns[0], 1), device))
    if once * len(turns) > seconds / 4:
        return None
    steps = max(1, min(STEPS, int(seconds / 8 / (once * (1 + 2 * len(turns))))))
    alone, together = [], []
    for repeat in range(1 + REPEATS):
        alone.append(_timed(lambda: train_alone(method, turns[0], steps), device))
        together.append(_timed(lambda: train_together(method, turns, steps), device))
        spent = time.perf_counter() - began
        if spent + spent / (1 + repeat) > seconds:
            break
    return len(turns) * min(alone[1:] or alone) / min(together[1:] or together)


def _timed(work: Callable[[], object], device: str) -> float:
    """Seconds of the processor where one thread of it works (others may use the machine), of the wall else."""
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return max(clock() - began, 1e-9)

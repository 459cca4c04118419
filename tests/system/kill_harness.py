"""Kills real audits at random moments, resumes each, and prints what came of it as JSON lines.

    python kill_harness.py FOLDER KILLS SEED

One process that imports everything once; every audit is a forked child, so that a kill costs what
is left of the audit and not another start. Half of the kills strike at a random time, half right
before or after a random file is put in its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
from omegaconf import DictConfig

from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit
from privdd.cli.stored_config import load_stored_config
from privdd.federated import trainer as training

OVERRIDES = [
    "algo=scaffold",
    "preset=smoke",
    "partition.clients=3",
    "data.limit=200",
    "model=mlp",
    "algo.rounds=3",
    "algo.local_epochs=1",
    "audit.worlds=4",
    "audit.records=30",
    "attack=[lira,loss_threshold,label_counts]",
    "audit.waive.control_variate=small",
]


class Killer:
    """Dies by SIGKILL at the ``at``-th file, just before or just after its rename; at 0: counts
    them all."""

    def __init__(self, at: int, before: bool) -> None:
        self.at = at
        self.before = before
        self.count = 0
        self.rename = Path.replace

    def __call__(self, source: Path, target: Path) -> Path:
        self.count += 1
        if self.count == self.at and self.before:
            os.kill(os.getpid(), signal.SIGKILL)
        done = self.rename(source, target)
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return done


def audit(path: Path, config: DictConfig) -> int:
    """Start, or go on with, an audit in ``path`` -> exit status."""
    return run_audit(
        load_stored_config(path) if (path / "config.yaml").is_file() else config,
        path,
        ["privdd-audit"],
    )


def child(path: Path, config: DictConfig, killer: Killer | None = None) -> int:
    """``audit`` in a child process -> its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        sys.stdout = sys.stderr = Path(f"{path}.log").open("a")  # noqa: SIM115
        if killer is not None:
            Path.replace = lambda a, b: killer(a, b)  # type: ignore[method-assign,assignment]
        status = audit(path, config)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def finish(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def result(path: Path) -> object:
    """Everything that counts: findings without seconds, ledger, every artifact and world."""

    def timeless(value: object) -> object:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if k != "seconds"}
        return [timeless(v) for v in value] if isinstance(value, list) else value

    found = timeless(json.loads((path / "findings.json").read_text()))
    files = sorted(
        p
        for folder in ("artifacts", "worlds", "evidence")
        for p in (path / folder).rglob("*.safetensors")
    )
    return [
        found,
        (path / "ledger.json").read_text(),
        [(str(p.relative_to(path)), p.read_bytes()) for p in files],
    ]


def main() -> None:
    folder = Path(sys.argv[1])
    kills = int(sys.argv[2])
    seed = int(sys.argv[3])
    torch.set_num_threads(1)
    config = compose_config("audit", OVERRIDES)
    # a checkpoint after every round, so that kills fall between them
    training.CHECKPOINT_EVERY = 0.0
    rng = random.Random(seed)
    with contextlib.redirect_stdout(sys.stderr):
        # imports and first calls are slow: before the clock runs
        audit(folder / "warm", config.copy())
        counter = Killer(0, before=False)
        Path.replace = lambda a, b: counter(a, b)  # type: ignore[method-assign,assignment]
        began = time.monotonic()
        audit(folder / "whole", config.copy())
        Path.replace = counter.rename  # type: ignore[method-assign]
    lasted = time.monotonic() - began
    expected = result(folder / "whole")
    for number in range(kills):
        path = folder / f"kill_{number}"
        by_file = number % 2 == 1
        moment = rng.randint(1, counter.count) if by_file else rng.uniform(0.05, 0.95) * lasted
        pid = child(path, config, Killer(int(moment), rng.random() < 0.5) if by_file else None)
        if not by_file:
            time.sleep(moment)
            os.kill(pid, signal.SIGKILL)
        struck = finish(pid)
        at = sum(p.is_file() for p in path.rglob("*"))
        status = finish(child(path, config))
        same = status == 0 and result(path) == expected
        seen = {
            "moment": moment,
            "by_file": by_file,
            "killed": struck == -signal.SIGKILL,
            "files": at,
        }
        print(json.dumps({**seen, "status": status, "same": same}), flush=True)


if __name__ == "__main__":
    main()

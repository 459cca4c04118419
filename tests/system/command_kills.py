"""SIGKILL at seeded writes of every command that writes a folder; repeated, it ends as if it had
never been killed.

    python -m tests.system.command_kills [--kills 25] [--seed 0] [--commands audit processes sweep
    report check canary]

One process imports everything once; every command is a forked child that dies right before or after
a file is put in its place. Exit status 1 if anything differs, is left half written, or ends in a
traceback. Engine ray: ``random_kills``."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from privdd import check, report
from privdd.canary import __main__ as canary
from privdd.cli import main as command
from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit, run_training
from privdd.runtime.files import is_half_written
from privdd.runtime.seal import is_sealed

TINY = [
    "preset=smoke",
    "algo=fedavg",
    "privacy=none",
    "model=mlp",
    "model.width=8",
    "partition.clients=2",
    "data.limit=80",
    "algo.rounds=2",
    "algo.local_epochs=1",
]
AUDIT = [
    *TINY,
    "attack=[lira,loss_threshold,label_counts]",
    "audit.worlds=3",
    "audit.records=8",
    "audit.victims=0",
    "audit.federations=0",
    *(f"audit.waive.{name}=beside_the_point" for name in ("counts", "update", "global_model")),
]
NOISE = """
import numpy as np
RNG = np.random.default_rng()
def release(x):
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    return x.sum(0) + RNG.normal(0, 5.0, x.shape[1])
"""
# of a clock, of the folder's name, digests of these
VOLATILE = ("seconds", "date", "command", "attacked", "files", "page", "seal")
Work = Callable[[Path], int]


def audit(engine: str, *more: str) -> Work:
    return lambda folder: run_audit(
        compose_config("audit", [*AUDIT, f"engine={engine}", *more]), folder / "run", ["audit"]
    )


def sweep(folder: Path) -> int:
    for module in ("hydra.core.utils", "hydra._internal.hydra"):
        sys.modules[module].configure_log = lambda *_, **__: None  # type: ignore[attr-defined]
    sys.argv = [
        "privdd-train",
        "-m",
        *TINY,
        "engine=serial",
        "seed=0,1",
        f"hydra.sweep.dir={folder / 'sweep'}",
    ]
    return command.main("train", run_training)


def draw_page(folder: Path) -> int:
    return report.main([str(folder / "run")])


def check_mechanism(folder: Path) -> int:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(NOISE)
    given = [
        "kind=records",
        "max_calls=3000",
        "input.rows=[4,3]",
        "stated.epsilon=8",
        "stated.delta=1e-5",
    ]
    return check.main([f"mechanism={folder / 'mine.py'}:release", *given, f"out={folder / 'out'}"])


def issue_canaries(folder: Path) -> int:
    """Canaries are issued once: what a killed issue left is refused in one line, and another folder
    is taken."""
    given = ["sites=hospital", "count=60", "shape=1,8,8", "classes=4", "stated=8", "delta=1e-5"]
    places = [f"sealed={folder / 'sealed'}", f"secrets={folder / 'secrets'}"]
    status = canary.main(["issue", *places, *given])
    if status == 1 and (folder / "sealed").exists():
        shutil.rmtree(folder / "sealed")  # as its owner has to
        shutil.rmtree(folder / "secrets", ignore_errors=True)
        status = canary.main(["issue", *places, *given])
    return status


COMMANDS: dict[str, Work] = {
    "audit": audit("serial"),
    "processes": audit("processes", "engine.workers=2"),
    "sweep": sweep,
    "report": draw_page,
    "check": check_mechanism,
    "canary": issue_canaries,
}


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if key not in VOLATILE}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def result(name: str, folder: Path) -> dict[str, Any]:
    """Everything that counts, by file: of random draws (check, canary) which files there are."""
    files: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).as_posix()
        if not path.is_file() or inside.endswith(("point.json", ".lock", "computed_with.json")):
            continue
        if name in ("check", "canary"):
            files[inside] = oct(path.stat().st_mode)
        elif path.suffix == ".safetensors" or path.name == "ledger.json":
            files[inside] = path.read_bytes()
        elif path.suffix == ".json" and not inside.startswith("state/"):
            files[inside] = timeless(json.loads(path.read_text()))
        else:
            files[inside] = "there"
    return files


class WriteCounter:
    """Counts files that are put in their place; at the ``at``-th (0: never) its process dies,
    before or after."""

    def __init__(self, at: int, is_before: bool) -> None:
        self.at = at
        self.is_before = is_before
        self.count = 0
        self.rename = Path.replace

    def __call__(self, source: Path, target: Path) -> Path:
        self.count += 1
        if self.count == self.at and self.is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        renamed = self.rename(source, target)
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return renamed


def run_child(work: Work, folder: Path, counter: WriteCounter) -> int:
    """The exit status, negative for a signal; the count of writes is left in ``FOLDER.count``, what
    it said in ``FOLDER.log``."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        sys.stdout = sys.stderr = Path(f"{folder}.log").open("a")  # noqa: SIM115
        Path.replace = lambda a, b: counter(a, b)  # type: ignore[method-assign,assignment]
        folder.mkdir(exist_ok=True)
        status = work(folder)
        Path(f"{folder}.count").write_text(str(counter.count))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def kill_once(
    name: str, root: Path, number: int, rng: random.Random, whole: Path, base: Path
) -> dict[str, Any]:
    folder = root / f"{name}-{number}"
    if name == "report":
        shutil.copytree(base, folder)
    writes = int(Path(f"{whole}.count").read_text())
    at = rng.randint(1, writes)
    struck = run_child(COMMANDS[name], folder, WriteCounter(at, rng.random() < 0.5))
    cut_off_but_sealed = (
        name in ("audit", "processes") and at < writes and is_sealed(folder / "run")
    )
    status = run_child(COMMANDS[name], folder, WriteCounter(0, False))
    expected = result(name, whole)
    ended = result(name, folder)
    differing = sorted(
        key for key in expected.keys() | ended.keys() if expected.get(key) != ended.get(key)
    )
    half_written = [key for key in ended if is_half_written(key)]
    differing = [re.sub(r"\s+", " ", key) for key in differing if key not in half_written]
    log = Path(f"{folder}.log").read_text()
    return {
        "command": name,
        "write": at,
        "of": writes,
        "killed": struck == -signal.SIGKILL,
        "status": status,
        "differing": differing[:5],
        "half_written": half_written,
        "traceback": "Traceback" in log,
        "sealed_too_early": cut_off_but_sealed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    given = parser.parse_args()
    rng = random.Random(given.seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        base = root / "base"
        base_status = run_child(COMMANDS["audit"], base, WriteCounter(0, False))
        wholes: dict[str, tuple[Path, int]] = {"audit": (base, base_status)}
        for number in range(given.kills):
            name = given.commands[number % len(given.commands)]
            if name not in wholes:
                whole = root / f"whole-{name}"
                if name == "report":
                    shutil.copytree(base, whole)
                wholes[name] = whole, run_child(COMMANDS[name], whole, WriteCounter(0, False))
            whole, expected = wholes[name]
            if expected not in (0, 2, 4):
                print(f"{name} fails by itself:\n{Path(f'{whole}.log').read_text()[-1500:]}")
                return 1
            seen = kill_once(name, root, number, rng, whole, base)
            bad = seen["status"] != expected or any(
                seen[key] for key in ("differing", "half_written", "traceback", "sealed_too_early")
            )
            wrong += bad
            print(json.dumps({**seen, "wrong": bad}), flush=True)
            if bad:
                print(Path(f"{root / f'{name}-{number}'}.log").read_text()[-800:], flush=True)
    print(f"{given.kills} kills, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())

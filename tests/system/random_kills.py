"""SIGKILL at random moments, over methods and engines: the same result after resume=, and no
process left behind.

    python -m tests.system.random_kills [--kills 20] [--seed 0] [--engines serial processes ray]
    [--methods fedavg ...]

Every run is a command of its own with its own workers. Its parent alone is killed; five seconds
later none of the processes that it started may be alive (they are found by a word in their
environment). Then the run is resumed and its ledger, model, artifacts and findings are compared
with those of an undisturbed run. Exit status 1 if anything differs."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

METHODS = {
    "fedavg": [],
    "scaffold": [],
    "feddm": ["algo.matching.iterations=5"],
    "fedproto": [],
    "fedavg_dp": ["algo=fedavg", "privacy=dpsgd", "privacy.delta=1e-3"],
}
TINY = [
    "preset=smoke",
    "partition.clients=3",
    "data.limit=150",
    "algo.rounds=3",
    "audit.worlds=4",
    "audit.records=16",
    "model=mlp",
    "model.width=16",
    "audit.victims=1",
    "audit.guarantee.runs=20",
    "attack=[lira,loss_threshold,label_counts]",
]
WAIVED = (
    "prototypes",
    "labels",
    "counts",
    "statistics",
    "control_variate",
    "synthetic_images",
    "update",
    "global_model",
)
GRACE = 5.0  # seconds after which nothing of a killed run may be alive
WORD = "PRIVDD_KILLED_RUN"


def arguments(method: str, engine: str) -> list[str]:
    waived = [f"audit.waive.{name}=beside_the_point" for name in WAIVED]
    engines = ["engine=serial"] if engine == "serial" else [f"engine={engine}", "engine.workers=2"]
    return [
        f"algo={method.removesuffix('_dp')}",
        *METHODS[method],
        *TINY,
        *waived,
        *engines,
        "engine.threads=1",
    ]


def started(token: str, *args: str, log: Path) -> subprocess.Popen[bytes]:
    """An audit as a process of its own; everything that it starts has ``token`` in its
    environment."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", WORD: token}
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "privdd.audit", *args], env=environment, stdout=file, stderr=file
        )


def alive(token: str) -> dict[int, str]:
    """Process id -> command line of every process with ``token`` in its environment, defunct ones
    aside."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"{WORD}={token}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found[int(place.name)] = (
                    (place / "cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")[:80]
                )
        except OSError:  # gone, or somebody else's
            continue
    return found


def result(folder: Path) -> list[Any]:
    """Everything that counts: findings without what a clock wrote, the ledger, the bytes of every
    other result."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if k != "seconds"}
        return [timeless(v) for v in value] if isinstance(value, list) else value

    parts = [
        p
        for name in ("artifacts", "state", "worlds", "evidence")
        for p in sorted((folder / name).rglob("*.safetensors"))
    ]
    bits = [(str(p.relative_to(folder)), p.read_bytes()) for p in parts]
    return [
        timeless(json.loads((folder / "findings.json").read_text())),
        (folder / "ledger.json").read_text(),
        bits,
    ]


def whole(method: str, engine: str, folder: Path) -> None:
    """An undisturbed run."""
    process = started(
        folder.name,
        *arguments(method, engine),
        f"hydra.run.dir={folder}",
        log=folder.with_suffix(".log"),
    )
    if process.wait():
        raise SystemExit(
            f"{method} on {engine} fails by "
            f"itself:\n{folder.with_suffix('.log').read_text()[-1500:]}"
        )


def files_in(folder: Path) -> int:
    return sum(p.is_file() for p in folder.rglob("*"))


def killed(method: str, engine: str, folder: Path, files: int, delay: float) -> dict[str, Any]:
    """One kill ``delay`` seconds after so many files were there, and the run that goes on from
    it."""
    log = folder.with_suffix(".log")
    process = started(folder.name, *arguments(method, engine), f"hydra.run.dir={folder}", log=log)
    while files_in(folder) < files and process.poll() is None:
        time.sleep(0.02)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    struck = process.wait() == -signal.SIGKILL
    time.sleep(GRACE)
    left = alive(folder.name)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    go_on = (
        [f"resume={folder}"]
        if (folder / "config.yaml").is_file()
        else [*arguments(method, engine), f"hydra.run.dir={folder}"]
    )
    at = files_in(folder)
    status = started(f"{folder.name} again", *go_on, log=log).wait()
    return {"killed": struck, "files": at, "left": sorted(left.values()), "status": status}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", nargs="+", default=["serial", "processes", "ray"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    wrong = 0
    struck = 0
    pairs = [
        (m, chosen.engines[i % len(chosen.engines)])
        for i, m in enumerate(chosen.methods * chosen.kills)
    ][: chosen.kills]
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        expected = {}
        for number, (method, engine) in enumerate(pairs):
            undisturbed = root / f"whole-{method}"
            if (
                method not in expected
            ):  # on one engine: the others must give the same, killed or not
                whole(method, chosen.engines[0], undisturbed)
                expected[method] = result(undisturbed)
            files = rng.randint(0, int(0.9 * files_in(undisturbed)))
            delay = rng.uniform(0, 0.5)
            folder = root / f"kill-{number}-{method}-{engine}"
            seen = killed(method, engine, folder, files, delay)
            same = seen["status"] == 0 and result(folder) == expected[method]
            struck += seen["killed"]
            wrong += not same or bool(seen["left"])
            print(
                json.dumps(
                    {"method": method, "engine": engine, "asked": files, **seen, "same": same}
                ),
                flush=True,
            )
    print(f"{len(pairs)} runs, {struck} killed before they ended, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())

"""Every algo, audited at its smallest, verified, edited and verified: ``python -m
benchmarks.verification [--preset smoke]``.

Every run must agree with itself, and must be refused after any one value of its findings, its
ledger, its evidence, its artifacts or its manifest was changed (``--edits`` of them, of each kind
in turn). One line for each run; exit status 1 where an honest run does not agree or an edit is not
found."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from attacks.command_line import CommandParser
from privdd.api import audit
from privdd.cli.compose import config_dir, group_choices
from privdd.runtime.files import DamagedRun
from privdd.runtime.run_folder import read_tensors, write_tensors
from privdd.verification.run_folder import verify_run

TINY = [
    "data=digits",
    "data.limit=200",
    "data.test_limit=80",
    "partition=iid",
    "partition.clients=3",
    "audit.records=40",
    "audit.worlds=6",
    "audit.victims=1",
    "audit.guarantee.runs=20",
    "audit.guarantee.slow_runs=20",
    "audit.guarantee.images=1",
]


KINDS = ("findings.json", "ledger.json", "evidence", "artifacts", "manifest.json")


def checked(algo: str, preset: str, folder: Path) -> tuple[int, int]:
    """(disagreements, numbers that the folder cannot give again) of a fresh audit with every
    attack."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        audit(f"algo={algo}", f"preset={preset}", *(TINY if preset == "smoke" else []), out=folder)
    found = verify_run(folder)
    for line in found.disagreements:
        print(f"  {line}")
    return len(found.disagreements), len(found.not_recomputable)


def unseen(folder: Path, edits: int, rng: random.Random) -> int:
    """How many of so many single edits ``verify_run`` does not find. The folder is as it was
    afterwards."""
    missed = 0
    for number in range(edits):
        kind = KINDS[number % len(KINDS)]
        file = folder / kind if kind.endswith(".json") else rng.choice(_tensors(folder / kind))
        before = file.read_bytes()
        what = _edit_json(file, rng) if kind.endswith(".json") else _edit_tensor(file, rng)
        try:
            if not verify_run(folder).disagreements:
                print(f"  not found: {what} of {file.relative_to(folder)}")
                missed += 1
        except DamagedRun:  # no longer of its format, which is said in one line
            pass
        file.write_bytes(before)
    return missed


def _tensors(place: Path) -> list[Path]:
    """Files that hold a number."""
    found = sorted(place.rglob("*.safetensors"))
    return [file for file in found if any(tensor.numel() for tensor in read_tensors(file).values())]


def _edit_json(file: Path, rng: random.Random) -> str:
    """Another value in the place of any one, deep inside."""
    whole = json.loads(file.read_text())
    places: list[tuple[Any, Any, str]] = []

    def walk(node: Any, path: str) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(value, dict | list):
                walk(value, f"{path}.{key}")
            else:
                places.append((node, key, f"{path}.{key}"))

    walk(whole, "")
    node, key, path = rng.choice(places)
    old = node[key]
    if isinstance(old, bool):
        node[key] = not old
    elif isinstance(old, int | float):
        node[key] = old * 2 + 1
    else:
        node[key] = f"{old}x"
    file.write_text(json.dumps(whole))
    return path


def _edit_tensor(file: Path, rng: random.Random) -> str:
    """One other number in one tensor."""
    parts = read_tensors(file)
    name = rng.choice([name for name, tensor in parts.items() if tensor.numel()])
    changed = parts[name].clone()
    at = rng.randrange(changed.numel())
    if changed.dtype == torch.bool:
        changed.view(-1)[at] = ~changed.view(-1)[at]
    else:
        changed.view(-1)[at] = changed.view(-1)[at] + 1
    write_tensors(file, {**parts, name: changed})
    return f"{name}[{at}]"


def main() -> int:
    given = CommandParser(description=__doc__.splitlines()[0] if __doc__ else None)
    given.add_argument("--preset", default="smoke", choices=("smoke", "default", "paper"))
    given.add_argument("--algos", nargs="*", default=group_choices("algo", [config_dir()]))
    given.add_argument("--edits", type=int, default=5)
    options = given.parse_args()
    wrong = missed = 0
    for algo in options.algos:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            found, taken = checked(algo, options.preset, Path(folder) / "run")
            blind = unseen(Path(folder) / "run", options.edits, random.Random(algo))
            wrong = wrong + found
            missed = missed + blind
            said = (
                f"{found} disagreements, {taken} not recomputable, {blind} of {options.edits} "
                "edits not found"
            )
            print(f"{algo:24} {said}, {time.monotonic() - began:.0f} s", flush=True)
    print(
        f"{len(options.algos)} runs, {wrong} disagreements; {missed} of "
        f"{len(options.algos) * options.edits} edits not found"
    )
    return int(bool(wrong or missed))


if __name__ == "__main__":
    sys.exit(main())

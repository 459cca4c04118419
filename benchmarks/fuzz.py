"""Random command lines and damaged run folders: every one ends in a whole result or in one line.

    python -m benchmarks.fuzz [--configs 500] [--files 200] [--first 0] [--seed 0] [--limit 60] [--log FILE]

Each case runs in a process of its own, with a limit on time and memory. Exit status 1 after any fault: a traceback, a
result that is silent nonsense, a run past its limit, a process that died.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from benchmarks.fuzz_cases import case
from benchmarks.fuzz_files import damage_cases, read_damaged, whole_runs
from benchmarks.fuzz_outcomes import FAULTS, Outcome, in_child, run_case
from benchmarks.machine import hardware


def configurations(numbers: Sequence[int], seed: int, limit: float) -> Iterator[tuple[str, Outcome]]:
    """(the command line, what became of it), one by one."""
    for number in numbers:
        made = case(number, seed)
        with tempfile.TemporaryDirectory(prefix="privdd-fuzz-") as place:
            folder, log = Path(place) / "run", Path(place) / "outcome.json"
            folder.mkdir()
            typed = f"{made.number}: privdd.{made.command} {' '.join(made.overrides)}"
            yield typed, in_child(partial(run_case, made, folder), log, limit)


def files(count: int, seed: int, limit: float) -> Iterator[tuple[str, Outcome]]:
    """The same for damaged files of finished and of stopped runs."""
    with tempfile.TemporaryDirectory(prefix="privdd-fuzz-") as place:
        for made in damage_cases(whole_runs(Path(place)), count, seed):
            log = Path(place) / "outcome.json"
            log.unlink(missing_ok=True)
            yield str(made), in_child(partial(read_damaged, made, Path(place) / "copy"), log, limit)


def told(what: str, outcomes: Iterator[tuple[str, Outcome]], log: Path | None) -> Counter[str]:
    """Counts by kind; every fault is printed as it comes."""
    counts: Counter[str] = Counter()
    for name, outcome in outcomes:
        counts[outcome.kind] += 1
        if outcome.line.startswith("(key not named"):
            counts["key not named"] += 1
        if outcome.kind in FAULTS:
            print(f"FAULT {outcome.kind}: {name}\n    {outcome.line}", flush=True)
        if log is not None:
            with log.open("a") as out:
                out.write(json.dumps({"what": what, "name": name, **asdict(outcome)}) + "\n")
    print(f"{what}: {sum(v for k, v in counts.items() if k != 'key not named')}; " + ", ".join(f"{k} {v}" for k, v in counts.most_common()), flush=True)
    return counts


def main() -> int:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in (("configs", 500), ("files", 200), ("first", 0), ("seed", 0), ("limit", 60)):
        made.add_argument(f"--{name}", type=int, default=value)
    made.add_argument("--log", type=Path)
    given = made.parse_args()
    torch.set_num_threads(1)
    print(hardware(), flush=True)
    began = time.monotonic()
    numbers = range(given.first, given.first + given.configs)
    counts = told("configurations", configurations(numbers, given.seed, given.limit), given.log)
    if given.files:
        counts += told("damaged files", files(given.files, given.seed, given.limit), given.log)
    print(f"{time.monotonic() - began:.0f} s", flush=True)
    return int(any(counts[kind] for kind in FAULTS))


if __name__ == "__main__":
    sys.exit(main())

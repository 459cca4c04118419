"""Random command lines and damaged run folders: every one ends in a whole result or in one line.

    python -m benchmarks.fuzz [--configs 500] [--files 200] [--replies 60] [--seed 0] [--limit 60] [--log FILE]

Each case runs in a fork of a process that has done such a run before, with a limit on time and memory. A case that the
log holds is counted and not run again, so that the whole can be done in pieces. Replies are what a hostile client of a
Flower federation might send. Exit status 1 after any fault: a traceback, a result that is silent nonsense, a run past
its limit, a process that died.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from benchmarks.fuzz_cases import Case, case
from benchmarks.fuzz_files import damage_cases, read_damaged, whole_runs
from benchmarks.fuzz_outcomes import FAULTS, Outcome, in_child, run_case
from benchmarks.fuzz_replies import Honest, federation, reply_case, send
from benchmarks.machine import hardware

Work = tuple[str, Callable[[Path], Outcome]]  # a case's name, and what it does in an empty folder


def configurations(count: int, seed: int) -> Iterator[Work]:
    for number in range(count):
        made = case(number, seed)

        def run(place: Path, made: Case = made) -> Outcome:
            (place / "run").mkdir()
            return run_case(made, place / "run")

        yield f"{made.number}: privdd.{made.command} {' '.join(made.overrides)}", run


def files(count: int, seed: int, runs: Sequence[Path]) -> Iterator[Work]:
    """Damaged files of finished and of stopped runs."""
    for number, made in enumerate(damage_cases(runs, count, seed)):
        yield f"{number}: {made}", lambda place, made=made: read_damaged(made, place / "copy")


def replies(count: int, seed: int, honest: Honest) -> Iterator[Work]:
    for number in range(count):
        made = reply_case(number, seed)
        yield f"{number}: {made}", lambda place, made=made: send(made, honest, place)


def told(what: str, cases: Iterator[Work], limit: float, log: Path | None) -> Counter[str]:
    """Counts by kind; every fault is printed as it comes, and what the log holds already is not run again."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log is not None and log.is_file() else []
    known = {line.pop("name"): line for line in lines if line.pop("what") == what}
    counts: Counter[str] = Counter()
    seconds = 0.0
    for name, work in cases:
        outcome = Outcome(**known[name]) if name in known else _fresh(work, limit)
        counts[outcome.kind] += 1
        seconds += outcome.seconds
        if outcome.line.startswith("(key not named"):
            counts["key not named"] += 1
        if outcome.kind in FAULTS:
            print(f"FAULT {outcome.kind}: {name}\n    {outcome.line}", flush=True)
        if log is not None and name not in known:
            with log.open("a") as out:
                out.write(json.dumps({"what": what, "name": name, **asdict(outcome)}) + "\n")
    whole = sum(count for kind, count in counts.items() if kind != "key not named")
    print(f"{what}: {whole}; {', '.join(f'{k} {v}' for k, v in counts.most_common())}; {seconds:.0f} CPU s", flush=True)
    return counts


def _fresh(work: Callable[[Path], Outcome], limit: float) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="privdd-fuzz-") as place:
        return in_child(partial(work, Path(place)), Path(place) / "outcome.json", limit)


def main() -> int:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in (("configs", 500), ("files", 200), ("replies", 60), ("seed", 0), ("limit", 60)):
        made.add_argument(f"--{name}", type=int, default=value)
    made.add_argument("--log", type=Path)
    given = made.parse_args()
    torch.set_num_threads(1)
    print(hardware(), flush=True)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="privdd-fuzz-") as place:
        runs = whole_runs(Path(place))  # afterwards this process has everything in memory that its forks need
        counts += told("configurations", configurations(given.configs, given.seed), given.limit, given.log)
        counts += told("damaged files", files(given.files, given.seed, runs), given.limit, given.log)
        if given.replies:
            honest = federation(Path(place) / "honest")
            counts += told("hostile replies", replies(given.replies, given.seed, honest), given.limit, given.log)
    return int(any(counts[kind] for kind in FAULTS))


if __name__ == "__main__":
    sys.exit(main())

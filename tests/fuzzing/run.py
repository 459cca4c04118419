"""Random command lines and damaged run folders: every one ends in a whole result or in one line.

    python -m tests.fuzzing.run [--configs 500] [--first 0] [--files 200] [--replies 60] [--seed 0]
    [--limit 60] [--log FILE]

Each case runs in a fork of a process that has done such a run before, with a limit on time and
memory. A case that the log holds is counted and not run again, so that the whole can be done in
pieces. Replies are what a hostile client of a Flower federation might send. Exit status 1 after any
fault: a traceback, a result that is silent nonsense, a run past its limit, a process that died; and
    if of so many configurations that each could, no single one of a method ran."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from privdd.cli.compose import config_dir, group_choices
from tests.fuzzing.cases import case
from tests.fuzzing.files import damage_cases, read_damaged, whole_runs
from tests.fuzzing.outcomes import FAULTS, Outcome, in_child, run_case
from tests.fuzzing.replies import Honest, federation, reply_case, send

Work = tuple[str, Callable[[Path], Outcome]]  # a case's name, and what it does in an empty folder
ENOUGH = 500  # configurations, of which about 40 % run: above ten for each method
Cases = Callable[[int], Work]  # by number; to make one can take as long as to run it


def configurations(seed: int) -> Cases:
    def made(number: int) -> Work:
        one = case(number, seed)

        def run(place: Path) -> Outcome:
            (place / "run").mkdir()
            return run_case(one, place / "run")

        return f"privdd.{one.command} {' '.join(one.overrides)}", run

    return made


def files(count: int, seed: int, runs: Sequence[Path]) -> Cases:
    """Damaged files of finished and of stopped runs."""
    listed = list(damage_cases(runs, count, seed))
    return lambda number: (
        str(listed[number]),
        lambda place: read_damaged(listed[number], place / "copy"),
    )


def replies(seed: int, honest: Honest) -> Cases:
    def made(number: int) -> Work:
        one = reply_case(number, seed)
        return str(one), lambda place: send(one, honest, place)

    return made


def told(
    what: str,
    cases: Cases,
    numbers: Sequence[int],
    limit: float,
    log: Path | None,
    ran: list[str] | None = None,
) -> Counter[str]:
    """Counts by kind; every fault is printed as it comes, and what the log holds already is not run
    again.

    ``ran`` takes the names of the cases that came to a whole result.
    """
    lines = (
        [json.loads(line) for line in log.read_text().splitlines()]
        if log is not None and log.is_file()
        else []
    )
    known = {line["number"]: line for line in lines if line["what"] == what}
    counts: Counter[str] = Counter()
    seconds = 0.0
    for number in numbers:
        if number in known:
            name = known[number]["name"]
            outcome = Outcome(**{k: known[number][k] for k in ("kind", "line", "seconds")})
        else:
            name, work = cases(number)
            outcome = _fresh(work, limit)
        counts[outcome.kind] += 1
        if ran is not None and outcome.kind == "ran":
            ran.append(name)
        seconds += outcome.seconds
        if outcome.line.startswith("(key not named"):
            counts["key not named"] += 1
        if outcome.kind in FAULTS:
            print(f"FAULT {outcome.kind}: {number}: {name}\n    {outcome.line}", flush=True)
        if log is not None and number not in known:
            with log.open("a") as out:
                out.write(
                    json.dumps({"what": what, "number": number, "name": name, **asdict(outcome)})
                    + "\n"
                )
    whole = sum(count for kind, count in counts.items() if kind != "key not named")
    print(
        f"{what}: {whole}; {', '.join(f'{k} {v}' for k, v in counts.most_common())}; "
        f"{seconds:.0f} CPU s",
        flush=True,
    )
    return counts


def never_ran(names: Iterable[str]) -> list[str]:
    """The methods that none of these command lines has: what is always refused is not tried at
    all."""
    ran = {
        word.removeprefix("algo=")
        for name in names
        for word in name.split()
        if word.startswith("algo=")
    }
    return sorted({*group_choices("algo", [config_dir()])} - ran)


def _fresh(work: Callable[[Path], Outcome], limit: float) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="privdd-fuzz-") as place:
        return in_child(partial(work, Path(place)), Path(place) / "outcome.json", limit)


def main() -> int:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in (
        ("configs", 500),
        ("first", 0),
        ("files", 200),
        ("replies", 60),
        ("seed", 0),
        ("limit", 60),
    ):
        made.add_argument(f"--{name}", type=int, default=value)
    made.add_argument("--log", type=Path)
    given = made.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="privdd-fuzz-") as place:
        # afterwards this process has everything in memory that its forks need
        runs = whole_runs(Path(place))
        numbers = range(given.first, given.first + given.configs)
        ran: list[str] = []
        counts += told(
            "configurations", configurations(given.seed), numbers, given.limit, given.log, ran
        )
        missing = never_ran(ran)
        print(f"methods of which no configuration ran: {', '.join(missing) or 'none'}", flush=True)
        damages = files(given.files, given.seed, runs)
        counts += told("damaged files", damages, range(given.files), given.limit, given.log)
        if given.replies:
            sent = replies(given.seed, federation(Path(place) / "honest"))
            counts += told("hostile replies", sent, range(given.replies), given.limit, given.log)
    untried = given.configs >= ENOUGH and missing
    return int(any(counts[kind] for kind in FAULTS) or bool(untried))


if __name__ == "__main__":
    sys.exit(main())

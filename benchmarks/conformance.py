"""How many faults of the corpus does the check find, how many twins does it accuse, and what does
counting alone find?

    python -m benchmarks.conformance [only=NAME,...] [side=fault|twin] [calls=N] [beside=no]
    [out=FILE.json]

Beside it a plain black-box test: one natural pair of neighbours (a record of norm 1000, spread
evenly, against its absence), 2 x 20,000 transcripts, Fisher's direction, Clopper-Pearson
(``attacks.certificates.bound_from_runs``); beside=no leaves it out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attacks.certificates import bound_from_runs
from privdd.api import check
from privdd.blackbox.budgets import CallBudget
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.mechanism import BlackBox, InputRefused
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.transcripts import draw_transcripts
from privdd.core.validation import BadConfig
from tests.conformance.cases import CASES, Case

PLAIN = 20_000  # calls a side
SIDES = ("fault", "twin")
KNOWN = ("only", "side", "calls", "beside", "out")


def plain(case: Case, f: Any) -> float:
    """The bound of the plain test at confidence 0.95; 0 where a side is not of one shape."""
    calls = int(case.settings.get("calls", 1))
    mechanism = BlackBox(
        (lambda: f()) if isinstance(f, type) else (lambda: f), case.kind, fresh=isinstance(f, type)
    )
    pair = neighbouring_pairs(case.kind, case.relation, InputShapes())[0]
    count = max(200, PLAIN // calls)
    clock = CallBudget(600, 10**8)
    try:
        sides = [
            draw_transcripts(mechanism, [side] * calls, count, clock).rows.reshape(count, -1)
            for side in (pair.present, pair.absent)
        ]
    except InputRefused:
        return 0.0
    if sides[0].shape != sides[1].shape:
        return 0.0
    bound = bound_from_runs(
        *(torch.from_numpy(s) for s in sides), delta=case.delta, generator=np.random.default_rng(0)
    )
    return bound.value


def read(argv: list[str]) -> dict[str, str]:
    """What was typed. Raises BadConfig for anything that is not understood."""
    given: dict[str, str] = {}
    for item in argv:
        key, equals, value = item.partition("=")
        if not equals or key not in KNOWN:
            raise BadConfig(f"{item}: known are {', '.join(f'{key}=' for key in KNOWN)}")
        given[key] = value
    for name in only(given):
        if name not in [case.name for case in CASES]:
            raise BadConfig(f"only={name}: no such case")
    if given.get("side", "fault") not in SIDES or given.get("beside", "no") not in ("yes", "no"):
        raise BadConfig("side= is fault or twin, beside= yes or no")
    return given


def only(given: Mapping[str, str]) -> list[str]:
    """The names of the cases: one that may hold commas, or several with commas between."""
    names = [case.name for case in CASES]
    asked = given.get("only")
    if asked is None:
        return names
    if asked in names:
        return [asked]
    return asked.split(",")


def main(argv: list[str]) -> int:
    if {"-h", "--help"} & {*argv}:
        print(__doc__, end="")
        return 0
    try:
        given = read(argv)
    except BadConfig as error:
        print(error, file=sys.stderr)
        return 1
    wanted = only(given)
    sides = (given["side"],) if "side" in given else SIDES
    rows = []
    for case in (case for case in CASES if case.name in wanted):
        for side, f in ((s, case.faulty if s == "fault" else case.twin) for s in sides):
            result = check(
                f, **case.asked(), max_calls=int(given["calls"]) if "calls" in given else None
            )
            beside = given.get("beside") != "no" and plain(case, f) > result.stated.refutation_limit
            rows.append(
                {
                    "name": case.name,
                    "side": side,
                    "refuted": result.refuted,
                    "plain": beside,
                    "seconds": result.seconds,
                    "certified": result.certified,
                }
            )
            if "out" in given:
                Path(given["out"]).write_text(json.dumps(rows, indent=1, default=float))
            print(
                f"{case.name:45s} {side:5s} {result.verdict:30s} plain: "
                f"{'refuted' if beside else '-':8s} {result.seconds:5.1f} s",
                flush=True,
            )
    for name in ("refuted", "plain"):
        found = {side: [r[name] for r in rows if r["side"] == side] for side in sides}
        print(
            f"{name}: "
            + ", ".join(f"{sum(each)} of {len(each)} {side}s" for side, each in found.items())
        )
    print(f"slowest: {max(r['seconds'] for r in rows):.1f} s of processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

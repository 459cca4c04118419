"""Is every private profile called consistent, whatever the seed? The whole audit of each, by profile and seed.

    python -m benchmarks.consistent [--profiles a,b] [--seeds 0,1,2,3,4] [--keep FILE] [--write docs/consistency.md] [key=value ...]

``--keep``: a file of finished runs, one JSON object a line; what it holds is not run again. The exit status is 1 where
a verdict is any other than "consistent".
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.certificate import PROFILES, commit, stored
from benchmarks.machine import hardware
from privdd.api import audit


def audited(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """One whole audit: its verdict, what is accounted and certified, and the notes of rows that contradict or failed."""
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        verdict = audit(*overrides, out=folder).verdict
    cost = time.process_time() - began
    found = json.loads((folder / "findings.json").read_text())
    figures = found["privacy"]["epsilon"]
    return {
        "verdict": verdict, "accounted": figures["pld"], "certified": figures.get("certified"),
        "bounds": found["privacy"]["multiplicity"]["tests"], "seconds": cost,
        "surfaces": {one["surface"]: one["verdict"] for one in found["surfaces"]},
    }  # fmt: skip


def collect(
    profiles: Sequence[str], seeds: Sequence[int], more: Sequence[str], keep: Path | None
) -> list[dict[str, Any]]:
    """A row for each run, seed by seed: from ``keep``, else run now and written there."""
    now = commit()
    known = {(row["profile"], row["seed"], tuple(row["more"])): row for row in stored(keep)}
    for seed in seeds:
        for name in profiles:
            if (name, seed, tuple(more)) in known:
                continue
            row = {"profile": name, "seed": seed, "more": list(more), "commit": now}
            with tempfile.TemporaryDirectory() as folder:
                row |= audited([*PROFILES[name][0], f"seed={seed}", *more], Path(folder) / "run")
            known[name, seed, tuple(more)] = row
            print(json.dumps(row), file=sys.stderr, flush=True)
            if keep:
                with keep.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return [known[name, seed, tuple(more)] for name in profiles for seed in seeds]


def _cell(row: Mapping[str, Any] | None) -> str:
    return f"{row['verdict']}, {row['certified'] or 0:.2f} of {row['accounted']:.2f}" if row else "not run"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a line for each profile, a column for each seed: verdict, and certified of accounted."""
    seeds = sorted({row["seed"] for row in rows})
    lines = [
        f"| profile | {' | '.join(f'seed {seed}' for seed in seeds)} | bounds | CPU s |",
        f"|---|{'---|' * len(seeds)}---|---|",
    ]
    for name in dict.fromkeys(row["profile"] for row in rows):
        mine = {row["seed"]: row for row in rows if row["profile"] == name}
        cells = [_cell(mine.get(seed)) for seed in seeds]
        costs = [row["seconds"] for row in mine.values()]
        bounds = "/".join(str(n) for n in sorted({row["bounds"] for row in mine.values()}))
        lines.append(f"| {name} | {' | '.join(cells)} | {bounds} | {sum(costs) / len(costs):.0f} |")
    return "\n".join(lines)


def page(rows: Sequence[Mapping[str, Any]], command: str) -> str:
    """The whole of docs/consistency.md."""
    agreed = sum(row["verdict"] == "consistent" for row in rows)
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    return f"""# Does an honest run get an honest verdict?

An audit looks at a run with many bounds, each of which may be wrong by chance; together they may contradict a true
statement in one run of twenty at most. Here every private profile is audited whole, with every attack, under several
seeds: {agreed} of {len(rows)} runs are consistent.

    {command}

A cell: the verdict, and the certified epsilon of the accounted one; "bounds" is how many bounds share the 5 % of error.
Digits, preset `smoke`. Commit {commits}; {hardware()}.

{table(rows)}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or write the page; 1 where a run is not consistent."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.consistent", description=__doc__)
    parser.add_argument("--profiles", default=",".join(PROFILES))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--keep", type=Path, help="finished runs, one a line")
    parser.add_argument("--write", type=Path, help="the file that the page is written to")
    parser.add_argument("more", nargs="*", help="settings for every run, as key=value")
    options = parser.parse_args(arguments)
    profiles = options.profiles.split(",")
    if unknown := sorted(set(profiles) - set(PROFILES)):
        parser.error(f"--profiles {','.join(unknown)}: known are {', '.join(PROFILES)}")
    torch.set_num_threads(1)
    more = ["data=digits", "preset=smoke", *options.more]
    rows = collect(profiles, [int(seed) for seed in options.seeds.split(",")], more, options.keep)
    command = " ".join(["python -m benchmarks.consistent", *([f"--write {options.write}"] if options.write else [])])
    if options.write:
        options.write.write_text(page(rows, command))
    else:
        print(table(rows))
    odd = [row for row in rows if row["verdict"] != "consistent"]
    for row in odd:
        print(f"{row['profile']}, seed {row['seed']}: {row['verdict']} {row['surfaces']}", file=sys.stderr)
    return int(bool(odd))


if __name__ == "__main__":
    sys.exit(main())

"""Is every private profile called consistent, whatever the seed? The whole audit of each, by
profile and seed.

    python -m benchmarks.consistent [--profiles a,b] [--seeds 0,1,2,3,4] [--keep FILE] [--write
    docs/consistency.md] [key=value ...]

``--keep``: a file of finished runs, one JSON object a line; what it holds is not run again. The
exit status is 1 where a verdict is any other than "consistent".
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import hardware
from benchmarks.profile_runs import collect, options
from privdd.api import audit
from privdd.reporting.export import write_markdown_page


def audited(overrides: Sequence[str]) -> dict[str, Any]:
    """One whole audit: its verdict, what is accounted and certified, and the verdict of each
    surface."""
    began = time.process_time()
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, quiet[0], quiet[1]:
        found = audit(*overrides, out=Path(folder) / "run")
    cost = time.process_time() - began
    figures = found.privacy.epsilon
    budget = found.privacy.multiplicity
    assert budget is not None  # every run of today has one
    return {
        "verdict": found.verdict,
        "accounted": figures.pld,
        "certified": figures.shown,
        "bounds": budget.tests,
        "seconds": cost,
        "surfaces": {str(surface.surface): surface.verdict for surface in found.surfaces},
    }


def _cell(row: Mapping[str, Any] | None) -> str:
    if row:
        return f"{row['verdict']}, {row['certified'] or 0:.2f} of {row['accounted']:.2f}"
    return "not run"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a line for each profile, a column for each seed: verdict, and certified of
    accounted."""
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

An audit computes many bounds of a run, each of which may be wrong by chance; together they may
contradict a true statement in one run of twenty at most. Here every private profile is audited
whole, with every attack, under several seeds: {agreed} of {len(rows)} runs are consistent.

    {command}

A cell: the verdict, and the certified epsilon of the accounted one; "bounds" is how many bounds
share the 5 % of error. Digits, preset `smoke`. Commit {commits}; {hardware()}.

{table(rows)}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or write the page; 1 where a run is not consistent."""
    given = options("consistent", __doc__, "0,1,2,3,4", arguments)
    torch.set_num_threads(1)
    rows = collect(given, ["data=digits", "preset=smoke", *given.more], audited)
    if given.write:
        write_markdown_page(given.write, page(rows, given.command))
    else:
        print(table(rows))
    odd = [row for row in rows if row["verdict"] != "consistent"]
    for row in odd:
        print(
            f"{row['profile']}, seed {row['seed']}: {row['verdict']} {row['surfaces']}",
            file=sys.stderr,
        )
    return int(bool(odd))


if __name__ == "__main__":
    sys.exit(main())

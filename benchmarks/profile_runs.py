"""Runs of every private profile under several seeds, measured once and kept: what their benchmarks
share."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attacks.command_line import CommandParser

GOAL = 0.90
SAMPLED_GOAL = 0.85
PROFILES: Mapping[
    str, tuple[list[str], float]
] = {  # settings, and what certified / accounted must reach
    "feddm_dp": (["algo=feddm_dp"], GOAL),
    "fedrd_dp": (["algo=fedrd_dp"], GOAL),
    "fedlgd_dp": (["algo=fedlgd_dp"], GOAL),
    "feddm_public_dp": (["algo=feddm_public_dp"], GOAL),
    "dp_head": (["algo=dp_head"], GOAL),
    "dp_means": (["algo=dp_means"], GOAL),
    "dp_moments": (["algo=dp_moments"], GOAL),
    "feddm_guided_dp": (["algo=feddm_guided_dp"], GOAL),
    "feddm_guided_scattering": (["algo=feddm_guided_scattering"], GOAL),
    "dp_head_scattering": (["algo=dp_head_scattering"], GOAL),
    "fedavg_client": (["algo=fedavg", "privacy=client"], GOAL),
    "dp_merf": (["algo=dp_merf"], GOAL),
    "dp_psg": (["algo=dp_psg"], GOAL),
    "dp_votes": (["algo=dp_votes"], GOAL),
    "fedavg_adaptive": (["algo=fedavg_adaptive", "trust=local"], GOAL),
    "fedavg_dpsgd": (["algo=fedavg", "privacy=dpsgd"], SAMPLED_GOAL),
    "fedmd_dp": (["algo=fedmd_dp"], SAMPLED_GOAL),
    "fedfed_dp": (["algo=fedfed_dp"], SAMPLED_GOAL),
}
Row = dict[str, Any]


def commit() -> str:
    """The commit that is checked out, "+" where files differ from it; "unknown" outside of a
    repository."""
    here = Path(__file__).parent
    made = [
        subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=False
        ).stdout.strip()
        for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "-uno"])
    ]
    return made[0] + ("+" if made[1] else "") if made[0] else "unknown"


def stored(file: Path | None) -> list[dict[str, Any]]:
    if file and file.is_file():
        return [json.loads(line) for line in file.read_text().splitlines()]
    return []


def options(
    name: str, doc: str | None, seeds: str, arguments: Sequence[str] | None
) -> argparse.Namespace:
    """The command line of ``benchmarks.NAME``; profiles and seeds are lists, ``command`` repeats
    what was asked."""
    parser = CommandParser(prog=f"python -m benchmarks.{name}", description=doc)
    parser.add_argument("--profiles", default=",".join(PROFILES))
    parser.add_argument("--seeds", default=seeds)
    parser.add_argument("--keep", type=Path, help="finished runs, one a line")
    parser.add_argument("--write", type=Path, help="the file that the page is written to")
    parser.add_argument("more", nargs="*", help="settings for every run, as key=value")
    given = parser.parse_args(arguments)
    asked = [
        f"--{key} {getattr(given, key)}"
        for key in ("profiles", "seeds")
        if getattr(given, key) != parser.get_default(key)
    ]
    given.command = " ".join(
        [parser.prog, *asked, *([f"--write {given.write}"] if given.write else []), *given.more]
    )
    given.profiles = given.profiles.split(",")
    given.seeds = [int(seed) for seed in given.seeds.split(",")]
    if unknown := sorted(set(given.profiles) - set(PROFILES)):
        parser.error(f"--profiles {','.join(unknown)}: known are {', '.join(PROFILES)}")
    return given


def collect(
    given: argparse.Namespace,
    more: Sequence[str],
    measure: Callable[[list[str]], Mapping[str, Any]],
) -> list[Row]:
    """A row for each run, in order: from ``--keep``, else measured now, seed by seed, and written
    there."""
    now = commit()
    keep = given.keep
    known = {(row["profile"], row["seed"], tuple(row["more"])): row for row in stored(keep)}
    for seed in given.seeds:
        for name in given.profiles:
            if (name, seed, tuple(more)) in known:
                continue
            row = {"profile": name, "seed": seed, "more": list(more), "commit": now}
            row |= measure([*PROFILES[name][0], f"seed={seed}", *more])
            known[name, seed, tuple(more)] = row
            print(json.dumps(row), file=sys.stderr, flush=True)
            if keep:
                with keep.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return [known[name, seed, tuple(more)] for name in given.profiles for seed in given.seeds]

"""What a dry run says that an audit costs, beside what the audit then takes, stage by stage.

    python -m benchmarks.prices [--preset smoke] [--profiles "fedfed,fedavg privacy=client"]
    [--dry-runs 5] [override ...]

Every run is a process of its own with engine=serial, in which seconds of wall are CPU seconds if
nothing else runs. A run stores the seconds of three stages, so the stages of a dry run are added to
these: replays of the audited client, of the federation and of the other clients are one, attacks
and tests of the guarantee another. Prints a Markdown table: said is the median of the dry runs,
spread their largest total over their smallest.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from attacks.command_line import CommandParser
from benchmarks.machine import hardware
from privdd.runtime.files import read_json

STAGE_LINE = re.compile(r"^  (\S.*?)\s+([\d.]+) CPU s$", re.MULTILINE)
# a run's own stages, and those of a dry run that are part of each
STAGES = {
    "train": ("train",),
    "worlds": ("worlds", "federations", "other clients"),
    "attacks": ("attacks", "guarantee tests"),
}
SEED_METHODS = "fedfed,feddm,fedrd,fedlgd"
HEAD = "| profile | stage | said, CPU s | taken, s | said / taken | spread of dry runs |"


def audit_command(profile: str, overrides: Sequence[str]) -> list[str]:
    """The command of a profile, which is a method and perhaps more settings."""
    settings = [f"algo={profile.split()[0]}", *profile.split()[1:]]
    return [sys.executable, "-m", "privdd.audit", *settings, "engine=serial", *overrides]


def parse_prices(text: str) -> dict[str, float]:
    """CPU seconds of each of ``STAGES``, from the lines that a dry run prints."""
    priced = {name: float(seconds) for name, seconds in STAGE_LINE.findall(text)}
    return {stage: sum(priced.get(part, 0.0) for part in parts) for stage, parts in STAGES.items()}


def price_audit(command: Sequence[str]) -> dict[str, float]:
    """What one dry run says. Raises CalledProcessError if it fails."""
    dry_run = subprocess.run(
        [*command, "--dry-run"], capture_output=True, text=True, check=True, timeout=3600
    )
    return parse_prices(dry_run.stdout + dry_run.stderr)


def time_audit(command: Sequence[str], folder: Path) -> Mapping[str, float]:
    """Seconds that each stage of one audit takes. Raises RuntimeError if it does not end."""
    audit = subprocess.run(
        [*command, f"hydra.run.dir={folder}"], capture_output=True, text=True, check=False
    )
    if audit.returncode not in (0, 2):
        raise RuntimeError(f"{' '.join(command[2:])}: {audit.stderr[-300:]}")
    seconds: Mapping[str, float] = read_json(folder / "findings.json")["run"]["seconds"]
    return seconds


def format_rows(
    profile: str, said: Sequence[Mapping[str, float]], taken: Mapping[str, float]
) -> list[str]:
    """A row for each stage that is priced or takes a tenth of a second."""
    totals = [sum(price.values()) for price in said]
    spread = max(totals) / min(totals)
    rows = []
    for stage in STAGES:
        price = statistics.median(one[stage] for one in said)
        spent = taken[stage]
        if price or spent >= 0.1:
            ratio = price / max(spent, 1e-3)
            rows.append(
                f"| {profile} | {stage} | {price:.1f} | {spent:.1f} | {ratio:.2f} | {spread:.2f} |"
            )
    return rows


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=("smoke", "default"), default="smoke")
    parser.add_argument("--profiles", default=SEED_METHODS, help="a,b privacy=dpsgd,c")
    parser.add_argument("--dry-runs", type=int, default=5)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    print(f"preset={given.preset}, {hardware()}\n\n{HEAD}\n|---|---|---|---|---|---|", flush=True)
    for profile in given.profiles.split(","):
        command = audit_command(profile, [f"preset={given.preset}", *given.overrides])
        said = [price_audit(command) for _ in range(given.dry_runs)]
        with tempfile.TemporaryDirectory() as folder:
            taken = time_audit(command, Path(folder) / "run")
        print("\n".join(format_rows(profile, said, taken)), flush=True)


if __name__ == "__main__":
    main()

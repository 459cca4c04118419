"""Every profile with a guarantee, audited by the command without noise and with half of the noise:
one line each.

    python -m benchmarks.plants [PROFILE,PROFILE]

prints | profile | plant | status | seconds | surfaces contradicted | first line |.

Exit status 0 if every run ends with status 2 and everything that a person reads agrees, else 1."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from privdd.selftest_faults.command_trial import CommandResult
from privdd.selftest_faults.fault_trials import NOISE_PLANTS, audit_with_plant
from privdd.selftest_faults.profiles import select_profiles


def audit_profiles(names: str) -> Iterator[tuple[str, str, CommandResult]]:
    """(profile, plant, what a person gets), of "all" or of names separated by commas. Raises
    BadConfig for an unknown one."""
    for profile in select_profiles(names):
        if why := profile.reason_unavailable():
            print(f"{profile.name}: not run: {why}", file=sys.stderr)
            continue
        for plant in NOISE_PLANTS:
            with tempfile.TemporaryDirectory() as folder:
                yield profile.name, plant, audit_with_plant(profile, plant, Path(folder) / "run")


def main() -> int:
    print(
        "| profile | plant | status | seconds | contradicted | first line "
        "|\n|---|---|---|---|---|---|",
        flush=True,
    )
    missed = 0
    for profile, plant, result in audit_profiles(sys.argv[1] if len(sys.argv) > 1 else "all"):
        broken = [name for name, verdict in result.surfaces.items() if verdict == "contradiction"]
        line = result.first_line or result.error
        told = f"{', '.join(broken)} of {len(result.surfaces)} | {line[:70]}{result.disagreement}"
        print(
            f"| {profile} | {plant} | {result.status} | {result.seconds:.0f} | {told} |", flush=True
        )
        if result.disagreement or not result.is_contradicted:
            missed += 1
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

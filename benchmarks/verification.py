"""Every algo and privacy setting, audited at its smallest and verified: ``python -m benchmarks.verification [--preset smoke]``.

Prints one line for each run; exit status 1 where an honest run does not agree with itself.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import time
from pathlib import Path

from privdd.api import audit
from privdd.cli.config import choices, config_dir
from privdd.verifying.verification import verify

TINY = [
    "data=digits", "data.limit=200", "data.test_limit=80", "partition=iid", "partition.clients=3", "audit.records=40",
    "audit.worlds=6", "audit.victims=1", "audit.guarantee.runs=20", "audit.guarantee.slow_runs=20", "audit.guarantee.images=1",
]  # fmt: skip


def checked(algo: str, preset: str, folder: Path) -> tuple[int, int]:
    """(disagreements, numbers that the folder cannot give again) of a fresh audit with every attack."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        audit(f"algo={algo}", f"preset={preset}", *(TINY if preset == "smoke" else []), out=folder)
    found = verify(folder)
    for line in found.disagreements:
        print(f"  {line}")
    return len(found.disagreements), len(found.taken)


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    given.add_argument("--preset", default="smoke", choices=("smoke", "default", "paper"))
    given.add_argument("--algos", nargs="*", default=choices("algo", [config_dir()]))
    options = given.parse_args()
    wrong = 0
    for algo in options.algos:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            found, taken = checked(algo, options.preset, Path(folder) / "run")
            wrong += found
            print(f"{algo:24} {found} disagreements, {taken} not recomputable, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{len(options.algos)} runs, {wrong} disagreements")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

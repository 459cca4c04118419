"""Write tests/slow.txt: the slowest tests of a whole run, taken until the others take at most so many seconds together.

    make test ARGS=--junitxml=times.xml
    python tools/slow_tests.py times.xml [seconds=840]

``make fast`` leaves them out; ``make test`` runs them all.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def times(junit: Path) -> dict[str, float]:
    """Name as pytest shows it -> seconds, of every test of a run."""
    found = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        found[f"{file}::{case.get('name', '')}"] = float(case.get("time", "0"))
    return found


def slowest(seconds: dict[str, float], rest: float) -> list[str]:
    """The fewest names whose absence leaves at most ``rest`` seconds, in alphabetical order."""
    total, names = sum(seconds.values()), []
    for name in sorted(seconds, key=lambda name: -seconds[name]):
        if total <= rest:
            break
        total -= seconds[name]
        names.append(name)
    return sorted(names)


def main() -> int:
    rest = float(sys.argv[2].removeprefix("seconds=")) if len(sys.argv) > 2 else 840.0
    names = slowest(times(Path(sys.argv[1])), rest)
    (ROOT / "tests" / "slow.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    print(f"tests/slow.txt: {len(names)} tests")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m privdd.train algo=fedavg``: training, ledger and accuracy without attacks."""

from __future__ import annotations

import sys
from typing import Any


def main() -> int:
    """Exit status: 0 done, 1 error."""
    from privdd.cli.main import main as run

    return run("train", _run_training)


def _run_training(*arguments: Any) -> int:
    # takes long to import, so only once the command line was checked
    from privdd.cli.run import run_training

    return run_training(*arguments)


if __name__ == "__main__":
    sys.exit(main())

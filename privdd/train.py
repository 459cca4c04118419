"""``python -m privdd.train algo=fedavg``: training, ledger and accuracy without attacks."""

from __future__ import annotations

import sys
from typing import Any


def main() -> None:
    """Exit status: 0 done, 1 error."""
    from privdd.cli.main import main as run

    sys.exit(run("train", _run_training))


def _run_training(*arguments: Any) -> int:
    from privdd.cli.run import (
        run_training,
    )  # takes long to import, so only once the command line was checked

    return run_training(*arguments)


if __name__ == "__main__":
    main()

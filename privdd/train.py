"""``python -m privdd.train algo=fedavg``: training, ledger and accuracy without attacks."""

from __future__ import annotations

import sys


def main() -> None:
    """Exit status: 0 done, 1 error."""
    from privdd.cli.main import main as run
    from privdd.cli.runs import run_training

    sys.exit(run("train", run_training))


if __name__ == "__main__":
    main()

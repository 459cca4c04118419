"""``python -m privdd.audit algo=fedfed``: train, train shadow models, attack every shared artifact, report."""

from __future__ import annotations

import sys


def main() -> None:
    """Exit status: 0 done (whatever the leak), 2 a stated guarantee is contradicted, 1 error."""
    from privdd.cli.main import main as run
    from privdd.cli.runs import run_audit

    sys.exit(run("audit", run_audit))


if __name__ == "__main__":
    main()

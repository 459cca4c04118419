"""``python -m privdd.audit algo=fedfed``: train, train shadow models, attack every shared artifact,
report."""

from __future__ import annotations

import sys
from typing import Any


def main() -> int:
    """Exit status: 0 done (whatever the leak), 2 a stated guarantee is contradicted, 3 a limit of
    the policy is broken, 1 error."""
    from privdd.cli.main import main as run

    return run("audit", _run_audit)


def _run_audit(*arguments: Any) -> int:
    # takes long to import, so only once the command line was checked
    from privdd.cli.run import run_audit

    return run_audit(*arguments)


if __name__ == "__main__":
    sys.exit(main())

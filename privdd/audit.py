"""``python -m privdd.audit algo=fedfed``: train, train shadow models, attack every shared artifact,
report."""

from __future__ import annotations

import sys
from typing import Any


def main() -> None:
    """Exit status: 0 done (whatever the leak), 2 a stated guarantee is contradicted, 3 a limit of
    the policy is broken, 1 error."""
    if sys.argv[1:] == ["--init"]:
        from privdd.gate import main as gate

        sys.exit(gate(["--init"]))
    from privdd.cli.main import main as run

    sys.exit(run("audit", _run_audit))


def _run_audit(*arguments: Any) -> int:
    from privdd.cli.run import (
        run_audit,
    )  # takes long to import, so only once the command line was checked

    return run_audit(*arguments)


if __name__ == "__main__":
    main()

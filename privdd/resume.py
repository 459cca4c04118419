"""``privdd resume DIR``: go on with a run that was stopped."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status as of the command that began the run; errors are one line on stderr and status
    1."""
    from privdd.cli.audit_commands import run_resume

    return run_resume(argv)


if __name__ == "__main__":
    sys.exit(main())

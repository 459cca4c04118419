"""``privdd attack DIR``: attack a finished run again, or with further attacks."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status as of an audit; errors are one line on stderr and status 1."""
    from privdd.cli.audit_commands import run_attack

    return run_attack(argv)


if __name__ == "__main__":
    sys.exit(main())

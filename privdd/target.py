"""``privdd target``: audit a model, synthetic data, updates or a recording that were made
elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status as of an audit; errors are one line on stderr and status 1."""
    from privdd.cli.audit_commands import run_target

    return run_target(argv)


if __name__ == "__main__":
    sys.exit(main())

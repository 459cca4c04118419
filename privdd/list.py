"""``privdd list [GROUP]``: what can be chosen in an audit."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from privdd.core.command import HELP_OPTIONS

USAGE = "usage: privdd list [GROUP]\n\nPrints the choices of every group of settings, or of one."


def main(argv: Sequence[str] | None = None) -> int:
    """One line a group, or one line a choice of a single group."""
    from privdd.cli.errors import run_reporting_errors

    arguments = sys.argv[1:] if argv is None else list(argv)
    if HELP_OPTIONS & {*arguments}:
        print(USAGE)
        return 0
    return run_reporting_errors(lambda: _print_choices(arguments))


def _print_choices(groups: Sequence[str]) -> int:
    from privdd.cli.compose import CONFIG_GROUPS, config_dir, group_choices
    from privdd.core.validation import BadConfig

    choices = [group for group in CONFIG_GROUPS if "/" not in group and group != "base"]
    for group in groups:
        if group not in choices:
            raise BadConfig(f"{group}: unknown group; known are {', '.join(choices)}")
    if len(groups) == 1:
        print("\n".join(group_choices(groups[0], [config_dir()])))
        return 0
    for group in groups or choices:
        print(f"{group}: {', '.join(group_choices(group, [config_dir()]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m privdd.canary issue|open|verify``: sealed canaries for a federation that is not a
simulation."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from privdd.canary.commands import ABOUT, COMMANDS, parse_canary_arguments
from privdd.cli.errors import run_reporting_errors
from privdd.core.command import HELP_OPTIONS
from privdd.core.validation import BadConfig


def main(argv: Sequence[str] | None = None) -> int:
    """The result on stdout; errors are one line on stderr and status 1."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if HELP_OPTIONS & {*arguments} or not arguments:
        *commands, last = COMMANDS.values()
        print(
            "\n".join([ABOUT, *(command.help_text() for command in commands), last.describe(), ""]),
            end="",
        )
        return 0 if arguments else 1
    return run_reporting_errors(lambda: _run_command(arguments[0], arguments[1:]))


def _run_command(command: str, argv: Sequence[str]) -> int:
    from privdd.canary.protocol import issue_canaries, open_canaries, verify_canaries

    commands = {"issue": issue_canaries, "open": open_canaries, "verify": verify_canaries}
    if command not in commands:
        raise BadConfig(f"{command}: allowed are {', '.join(commands)}")
    return commands[command](parse_canary_arguments(command, argv))


if __name__ == "__main__":
    sys.exit(main())

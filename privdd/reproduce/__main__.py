"""``python -m privdd.reproduce``: the papers' tables and figures, one command each."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Results on stdout, progress on stderr; errors are one line on stderr and status 1."""
    from privdd.cli.errors import run_command
    from privdd.reproduce.catalogue import REPRODUCE

    return run_command(REPRODUCE, argv, _run_command)


def _run_command(argv: Sequence[str]) -> int:
    from privdd.reproduce.catalogue import COMMANDS, find_entry, parse_arguments

    arguments = parse_arguments(argv)
    if arguments.name not in COMMANDS:
        find_entry(arguments.name)  # a mistyped name is refused at once
    if arguments.name == "list":
        from privdd.reproduce.catalogue_table import print_catalogue

        return print_catalogue(arguments)
    from privdd.reproduce.claims import decide_sentences
    from privdd.reproduce.page import print_overview, run_all, run_entry
    from privdd.runtime.startup import keep_freed_memory

    keep_freed_memory()
    run = {"all": run_all, "overview": print_overview, "privacy": decide_sentences}
    return run.get(arguments.name, run_entry)(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m privdd.reproduce``: the papers' tables and figures, one command each."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Results on stdout, progress on stderr; errors are one line on stderr and status 1."""
    from privdd.cli.compose import run_guarded
    from privdd.reproduce.catalogue import REPRODUCE

    given = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & {*given} or not given:
        print(REPRODUCE.help_text(), end="")
        return 0 if given else 1
    return run_guarded(lambda: _run_command(given))


def _run_command(argv: Sequence[str]) -> int:
    from privdd.reproduce.catalogue import find_entry, parse_arguments

    asked = parse_arguments(argv)
    if asked.name not in ("list", "all", "overview", "privacy"):
        find_entry(asked.name)  # a mistyped name is refused at once
    if asked.name == "list":
        from privdd.reproduce.page import print_catalogue

        print_catalogue(sys.stdout)
        return 0
    from privdd.reproduce.page import print_overview, run_all, run_entry
    from privdd.runtime.startup import keep_freed_memory

    keep_freed_memory()
    if asked.name == "privacy":
        from privdd.reproduce.claims import decide_sentences

        return decide_sentences(asked)
    if asked.name == "overview":
        return print_overview(asked)
    return run_all(asked) if asked.name == "all" else run_entry(asked)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m privdd.reproduce``: the papers' tables and figures, one command each."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Results on stdout, progress on stderr; errors are one line on stderr and status 1."""
    from privdd.cli.config import guarded
    from privdd.reproduce.typed import USAGE

    given = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & {*given} or not given:
        print(USAGE, end="")
        return 0 if given else 1
    return guarded(lambda: _main(given))


def _main(argv: Sequence[str]) -> int:
    from privdd.reproduce.entries import find
    from privdd.reproduce.typed import read

    asked = read(argv)
    if asked.name not in ("list", "all", "overview", "privacy"):
        find(asked.name)  # a mistyped name is refused at once
    if asked.name == "list":
        from privdd.reproduce.entry_list import print_list

        print_list(sys.stdout)
        return 0
    from privdd.reproduce.reproduction import everything, one, overview
    from privdd.runtime.allocator import keep_memory

    keep_memory()
    if asked.name == "privacy":
        from privdd.reproduce.sentence_page import tried

        return tried(asked)
    if asked.name == "overview":
        return overview(asked)
    return everything(asked) if asked.name == "all" else one(asked)


if __name__ == "__main__":
    sys.exit(main())

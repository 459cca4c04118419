"""``python -m privdd.check``: is this mechanism's epsilon true?"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privdd.checking.command_line import CommandLine
    from privdd.checking.run_check import CheckRequest

REFUTED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """The verdict on stdout, progress on stderr; errors are one line on stderr and status 1."""
    from privdd.checking.command_line import USAGE
    from privdd.cli.config import guarded

    given = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & {*given} or not given:
        print(USAGE, end="")
        return 0 if given else 1
    return guarded(lambda: _main(given))


def _main(argv: Sequence[str]) -> int:
    from privdd.checking.check_page import write
    from privdd.checking.child import add_folder
    from privdd.checking.command_line import read
    from privdd.checking.run_check import checked, stages
    from privdd.runtime.progress import stage

    if argv[0].startswith("components="):
        return _components(argv)
    asked = read(argv)
    add_folder(Path.cwd())
    if asked.what != "mechanism":
        return _plugin(asked.what, asked.name, asked.args)
    request = _request(asked)
    command = shlex.join(["python", "-m", "privdd.check", *asked.given])
    with stage(f"check {asked.name}", stages()) as bar:
        result = checked(request, lambda name: bar.advance(name), command)
    if asked.out is not None:
        print(write(result, asked.out))
    print(result.says, flush=True)
    return REFUTED if result.refuted else 0


def _request(asked: CommandLine) -> CheckRequest:
    from privdd.adapters.components import adapted
    from privdd.checking.named import load_target
    from privdd.checking.run_check import CheckRequest

    return CheckRequest(
        lambda: load_target(asked.name), asked.name, asked.stated, asked.args, asked.tried, adapted, True,
        asked.seconds, asked.calls, asked.confidence,
    )  # fmt: skip


def _components(argv: Sequence[str]) -> int:
    """The table of known components, one after the other, written after each."""
    from privdd.checking.command_line import read
    from privdd.checking.component_table import ROWS, installed, page
    from privdd.checking.run_check import checked
    from privdd.core.errors import BadConfig
    from privdd.runtime.files import write_bytes
    from privdd.runtime.progress import stage

    target = argv[0].partition("=")[2]
    if len(argv) > 1 or not target:
        raise BadConfig("components=FILE.md stands alone")
    done = []
    with stage("components", len(ROWS)) as bar:
        for row in ROWS:
            done.append((row, checked(_request(read(row.arguments))) if installed(row) else None))
            write_bytes(Path(target), page(done, f"python -m privdd.check components={target}").encode())
            bar.advance(row.what)
    return 0


def _plugin(what: str, name: str, args: Mapping[str, Any]) -> int:
    from privdd.auditing.method_check import BrokenContract, check_method
    from privdd.checking.child import in_child
    from privdd.checking.named import load_target
    from privdd.checking.plugin_check import plugin

    def work(say: Any) -> dict[str, Any]:
        made = plugin(what, load_target(name), args)
        try:
            if what == "method":
                check_method(made)
        except BrokenContract as broken:
            return {"faults": str(broken).splitlines()}
        return {"faults": []}

    faults = in_child(work, 600)["faults"]
    for line in faults:
        print(line)
    print(
        f"{name}: {'breaks' if faults else 'keeps'} the contract of a{'n' if what == 'attack' else ''} {what}",
        flush=True,
    )
    return REFUTED if faults else 0


if __name__ == "__main__":
    sys.exit(main())

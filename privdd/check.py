"""``python -m privdd.check``: is this mechanism's epsilon true?"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privdd.blackbox.arguments import CheckArguments
    from privdd.blackbox.runner import CheckRequest

EXIT_REFUTED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """The verdict on stdout, progress on stderr; errors are one line on stderr and status 1."""
    from privdd.blackbox.arguments import USAGE
    from privdd.cli.compose import run_guarded

    given = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & {*given} or not given:
        print(USAGE, end="")
        return 0 if given else 1
    return run_guarded(lambda: _run_command(given))


def _run_command(argv: Sequence[str]) -> int:
    from privdd.blackbox.arguments import parse_arguments
    from privdd.blackbox.mechanism import add_search_folder
    from privdd.blackbox.page import write_check_page
    from privdd.blackbox.runner import run_check, stage_count
    from privdd.runtime.progress import show_progress

    if argv[0].startswith("components="):
        return _check_components(argv)
    asked = parse_arguments(argv)
    add_search_folder(Path.cwd())
    if asked.what != "mechanism":
        return _check_plugin(asked.what, asked.name, asked.args)
    request = _build_request(asked)
    command = shlex.join(["python", "-m", "privdd.check", *asked.given])
    with show_progress(f"check {asked.name}", stage_count()) as bar:
        result = run_check(request, lambda name: bar.advance(name), command)
    if asked.out is not None:
        print(write_check_page(result, asked.out))
    print(result.says, flush=True)
    return EXIT_REFUTED if result.refuted else 0


def _build_request(asked: CheckArguments) -> CheckRequest:
    from privdd.blackbox.runner import CheckRequest
    from privdd.blackbox.target import load_target
    from privdd.integrations.components import adapt_component

    return CheckRequest(
        lambda: load_target(asked.name), asked.name, asked.stated, asked.args, asked.tried, adapt_component, True,
        asked.seconds, asked.calls, asked.confidence,
    )  # fmt: skip


def _check_components(argv: Sequence[str]) -> int:
    """The table of known components, one after the other, written after each."""
    from privdd.blackbox.arguments import parse_arguments
    from privdd.blackbox.runner import run_check
    from privdd.core.validation import BadConfig
    from privdd.integrations.component_table import ROWS, format_component_page, is_installed
    from privdd.reporting.export import write_markdown_page
    from privdd.runtime.progress import show_progress

    target = argv[0].partition("=")[2]
    if len(argv) > 1 or not target:
        raise BadConfig("components=FILE.md stands alone")
    done = []
    with show_progress("components", len(ROWS)) as bar:
        for row in ROWS:
            done.append(
                (row, run_check(_build_request(parse_arguments(row.check_arguments))) if is_installed(row) else None)
            )
            write_markdown_page(
                Path(target), format_component_page(done, f"python -m privdd.check components={target}")
            )
            bar.advance(row.what)
    return 0


def _check_plugin(what: str, name: str, args: Mapping[str, Any]) -> int:
    from privdd.auditing.method_contract import BrokenContract, check_method
    from privdd.blackbox.mechanism import run_in_child
    from privdd.blackbox.plugin_target import make_plugin
    from privdd.blackbox.target import load_target

    def check_in_child(say: Any) -> dict[str, Any]:
        made = make_plugin(what, load_target(name), args)
        try:
            if what == "method":
                check_method(made)
        except BrokenContract as broken:
            return {"faults": str(broken).splitlines()}
        return {"faults": []}

    faults = run_in_child(check_in_child, 600)["faults"]
    for line in faults:
        print(line)
    print(
        f"{name}: {'breaks' if faults else 'keeps'} the contract of a{'n' if what == 'attack' else ''} {what}",
        flush=True,
    )
    return EXIT_REFUTED if faults else 0


if __name__ == "__main__":
    sys.exit(main())

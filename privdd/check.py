"""``python -m privdd.check``: is this mechanism's epsilon true?"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EXIT_REFUTED = 2
EXIT_UNDECIDED = 4
HUNDREDTHS = 100


def main(argv: Sequence[str] | None = None) -> int:
    """The verdict on stdout, progress on stderr; errors are one line on stderr and status 1."""
    from privdd.blackbox.check_command import CHECK
    from privdd.cli.errors import run_command

    return run_command(CHECK, argv, _run_command)


def _run_command(argv: Sequence[str]) -> int:
    from privdd.blackbox.check_arguments import check_request
    from privdd.blackbox.check_command import CHECK, named_target
    from privdd.blackbox.check_limits import judge_check
    from privdd.blackbox.check_page import write_check_page
    from privdd.blackbox.runner import run_check
    from privdd.blackbox.target import add_search_folder
    from privdd.core.command import values_below
    from privdd.core.validation import BadConfig
    from privdd.integrations.components import adapt_component
    from privdd.reporting import policy as limits
    from privdd.runtime.progress import show_progress

    if ":" in argv[0] and "=" not in argv[0]:
        raise BadConfig(f"{argv[0]}: KEY=VALUE is needed; did you mean mechanism={argv[0]}?")
    values = CHECK.parse(argv)
    if "components" in values:
        return _check_components(values)
    add_search_folder(Path.cwd())
    what, name = named_target(values)
    if what != "mechanism":
        return _check_plugin(what, name, values_below(values, "args"))
    if "out" in values:
        check_output_folder(Path(values["out"]))
    policy = limits.policy_of_arguments(values)
    request = check_request(values, adapt_component)
    with show_progress(f"check {name}", HUNDREDTHS) as bar:

        def show_step(stage: str, share: float) -> None:
            """Of the calls; the last hundredth is the answer."""
            bar.advance(stage, max(0, min(int(HUNDREDTHS * share), HUNDREDTHS - 1) - bar.done))

        result = run_check(request, show_step, shlex.join(["python", "-m", "privdd.check", *argv]))
        if "out" in values:
            page = write_check_page(result, Path(values["out"]))
        else:
            page = None
        bar.advance(by=HUNDREDTHS - bar.done)
    print(result.says)
    if page is not None:
        print(page)
        if result.case is not None:
            print(f"{Path(values['out']) / 'reproduce.py'}: shows it without privdd")
    broken = policy is not None and limits.report_limits(
        policy, judge_check(policy, result), sys.stdout
    )
    sys.stdout.flush()
    if result.refuted:
        return EXIT_REFUTED
    if broken:
        return limits.EXIT_BROKEN
    return EXIT_UNDECIDED if result.is_undecided else 0


def check_output_folder(folder: Path) -> None:
    """Refuse a folder whose findings are not those of a check: they would be overwritten.

    Raises:
        BadConfig: It holds the findings of a run.
        DamagedRun: It holds a findings.json that cannot be read.
    """
    from privdd.blackbox.check_limits import read_check
    from privdd.core.validation import BadConfig
    from privdd.runtime.run_files import FINDINGS

    if os.path.lexists(folder / FINDINGS) and read_check(folder) is None:
        raise BadConfig(f"out={folder}: holds the {FINDINGS} of something else; use another folder")


def _check_components(given: Mapping[str, Any]) -> int:
    """The table of known components, one after the other, written after each."""
    from privdd.blackbox.check_arguments import check_request
    from privdd.blackbox.check_command import CHECK
    from privdd.blackbox.runner import run_check
    from privdd.core.validation import BadConfig
    from privdd.integrations import components as table
    from privdd.integrations.component_rows import ROWS
    from privdd.integrations.components import adapt_component
    from privdd.reporting.export import write_markdown_page
    from privdd.runtime.progress import show_progress

    if len(given) > 1:
        raise BadConfig("components=FILE.md stands alone")
    page = Path(given["components"])
    command = f"python -m privdd.check components={given['components']}"
    cells = [table.known_cells(page, row) for row in ROWS]
    with show_progress("components", len(ROWS)) as bar:
        for index, row in enumerate(ROWS):
            if cells[index] is None and row.version is not None:
                request = check_request(CHECK.parse(row.check_arguments), adapt_component)
                try:
                    cells[index] = table.checked_cells(row, run_check(request))
                except BadConfig as error:  # the other rows are checked all the same
                    cells[index] = table.missing_cells(row, f"no check: {error}")
            done = [cell or table.missing_cells(row) for cell, row in zip(cells, ROWS)]
            write_markdown_page(page, table.format_component_page(done, command))
            bar.advance(row.what)
    return 0


def _check_plugin(what: str, name: str, args: Mapping[str, Any]) -> int:
    from privdd.auditing.method_contract import BrokenContract, check_method
    from privdd.blackbox.child_process import run_in_child
    from privdd.blackbox.target import load_target, make_plugin

    def check_in_child(say: Any) -> dict[str, Any]:
        plugin = make_plugin(what, load_target(name), args)
        try:
            if what == "method":
                check_method(plugin)
        except BrokenContract as broken:
            return {"faults": str(broken).splitlines()}
        return {"faults": []}

    faults = run_in_child(check_in_child, 600)["faults"]
    for line in faults:
        print(line)
    print(
        f"{name}: {'breaks' if faults else 'keeps'} the contract of "
        f"a{'n' if what == 'attack' else ''} {what}",
        flush=True,
    )
    return EXIT_REFUTED if faults else 0


if __name__ == "__main__":
    sys.exit(main())

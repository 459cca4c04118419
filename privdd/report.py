"""``python -m privdd.report DIR [DIR ...] [--out DIR] [--pdf] [--card FORM]``: the page of one run,
a comparison of several, a card."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from attacks.command_line import ERROR_PREFIX, CommandParser
from privdd.runtime.files import DamagedRun


def report_parser() -> CommandParser:
    made = CommandParser(
        prog="privdd-report",
        description="Write the page of one finished run, or a comparison of several.",
    )
    made.add_argument(
        "runs", nargs="+", type=Path, metavar="DIR", help="a run folder (with findings.json)"
    )
    made.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where a comparison or a card goes (default: ./comparison, and here)",
    )
    made.add_argument(
        "--pdf",
        action="store_true",
        help="write figures as PDF too, and print the page with a Chromium or Chrome on the PATH",
    )
    made.add_argument(
        "--card",
        choices=("huggingface", "registry"),
        help="of one run: a model card of the Hugging Face Hub, or an entry of the "
        "registry of DP deployments, instead of the page",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 with one line on stderr where a folder is no finished, undamaged run that
    agrees with itself."""
    given = report_parser().parse_args(argv)
    for run in given.runs:
        if not run.is_dir():
            print(f"{ERROR_PREFIX}: {run}: no such folder", file=sys.stderr)
            return 1

    from privdd.reporting.page import print_pdf
    from privdd.reporting.schema import load_findings  # takes long to import
    from privdd.reporting.terminal import print_summary
    from privdd.verification.run_folder import compare, load_run, write_run_page

    try:
        if given.card is not None:
            from privdd.reporting.publication import write_form

            if len(given.runs) > 1:
                raise DamagedRun("--card: of one run")
            page = write_form(load_run(given.runs[0]), given.card, given.out or Path())
        elif len(given.runs) == 1 and given.out is None:
            page = write_run_page(given.runs[0], given.pdf)
            print_summary(load_findings(given.runs[0]), sys.stdout)
        else:
            page = compare(given.runs, given.out or Path("comparison"), print, given.pdf)
        print(page, flush=True)
        if given.pdf and given.card is None:
            print(print_pdf(page), flush=True)
    except (DamagedRun, OSError) as error:
        print(f"{ERROR_PREFIX}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

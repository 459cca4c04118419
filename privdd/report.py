"""``privdd report DIR...``: the page of one run, a comparison of several, or a card."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privdd.core.command import (
    Command,
    Key,
    Places,
    read_number,
    read_path,
    read_text,
    read_truth,
    read_word,
    values_below,
)

if TYPE_CHECKING:
    from privdd.reporting.figures.paper import PaperStyle

CARD_FORMS = ("huggingface", "registry")
REPORT = Command(
    "privdd report DIR... [out=DIR] [pdf=true] [figures.KEY=VALUE...] [card=FORM]",
    "Writes the page of one finished run, or a comparison of several. Exit status: 0 done, 1 "
    "error.",
    (
        Key("out", read_path, "DIR", "folder of a comparison or a card (./comparison, and here)"),
        Key(
            "pdf",
            read_truth,
            "true",
            "write figures as PDF too, and print the page with a Chromium or Chrome on the PATH",
        ),
        Key("figures.width", read_number, "INCHES", "of figures as PDF (3.3, a column)"),
        Key("figures.font", read_text, "FAMILY", "of their texts, one that is installed"),
        Key("figures.size", read_number, "POINTS", "of the labels of their axes (8)"),
        Key(
            "figures.names.*",
            read_text,
            "TEXT",
            "what they call NAME, a word of their labels; any of these four writes PDF",
        ),
        Key(
            "card",
            read_word(*CARD_FORMS),
            "|".join(CARD_FORMS),
            "of one run, in place of the page: a model card of the Hugging Face Hub, or an entry "
            "of the registry of DP deployments",
        ),
    ),
    places=Places("runs", "DIR", "run folders (with findings.json)"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 with one line on stderr where a folder is no finished, undamaged run that
    agrees with itself."""
    from privdd.cli.errors import run_command

    return run_command(REPORT, argv, lambda arguments: _run_command(REPORT.parse(arguments)))


def _run_command(values: Mapping[str, Any]) -> int:
    from privdd.runtime.files import DamagedRun

    runs: list[Path] = values["runs"]
    for run in runs:
        if not run.is_dir():
            raise DamagedRun(f"{run}: no such folder")
    if "card" in values:
        print(_write_card(runs, values["card"], values.get("out", Path())), flush=True)
        return 0
    as_pdf = values.get("pdf", False)
    page = _write_page(runs, values.get("out"), _paper_style(values, as_pdf))
    print(page, flush=True)
    if as_pdf:
        from privdd.reporting.browser import print_pdf

        print(print_pdf(page), flush=True)
    return 0


def _write_card(runs: Sequence[Path], form: str, out: Path) -> Path:
    from privdd.reporting.publication import write_form
    from privdd.runtime.files import DamagedRun
    from privdd.verification.run_folder import load_run

    if len(runs) > 1:
        raise DamagedRun(f"card={form}: takes one run")
    return write_form(load_run(runs[0]), form, out)


def _paper_style(values: Mapping[str, Any], as_pdf: bool) -> PaperStyle | None:
    """The form of figures as PDF; None if none are asked for."""
    from privdd.core.validation import BadConfig
    from privdd.reporting.figures.paper import PaperStyle

    names = values_below(values, "figures.names")
    chosen = {
        key: value
        for key, value in values_below(values, "figures").items()
        if not key.startswith("names.")
    }
    if not (names or chosen or as_pdf):
        return None
    try:
        return PaperStyle(**chosen, names=names)
    except ValueError as error:
        raise BadConfig(str(error)) from None


def _write_page(runs: Sequence[Path], out: Path | None, paper: PaperStyle | None) -> Path:
    from privdd.reporting.schema import load_findings
    from privdd.reporting.terminal import print_summary
    from privdd.verification.run_folder import compare, write_run_page

    if len(runs) > 1 or out is not None:
        return compare(runs, out or Path("comparison"), print, paper)
    page = write_run_page(runs[0], paper)
    print_summary(load_findings(runs[0]), sys.stdout)
    return page


if __name__ == "__main__":
    sys.exit(main())

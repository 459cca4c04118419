"""The page of a check."""

from __future__ import annotations

from pathlib import Path

from privdd.blackbox.check_report import WORDS
from privdd.blackbox.check_verdict import BREAKS, KEEPS, UNDECIDED, Checked
from privdd.blackbox.claims import plain_number
from privdd.blackbox.reproduction import write_reproduction
from privdd.runtime.files import is_half_written, write_bytes, write_json

TONES = {BREAKS: "contradiction", KEEPS: "consistent", UNDECIDED: "untested"}
OTHER_TONE = "unprotected"


def write_check_page(result: Checked, folder: Path) -> Path:
    """``findings.json``, ``check.html`` and, of a refuted statement, ``reproduce.py``.

    Args:
        result: of a check.
        folder: that the files are written to.

    Returns:
        The page.
    """
    from privdd.reporting.page import template_environment

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "findings.json", result.as_json())
    template = template_environment().get_template("check.html.jinja")
    page = template.render(
        c=result,
        tone=TONES.get(result.verdict, OTHER_TONE),
        strengths=WORDS,
        title=_page_title(result),
    )
    path = folder / "check.html"
    write_bytes(path, page.encode())
    write_reproduction(result, folder)
    _remove_half_written(folder)
    return path


def _remove_half_written(folder: Path) -> None:
    """Remove the files that an earlier check was writing when it was killed."""
    for path in folder.iterdir():
        if is_half_written(path.name) and not path.is_dir():
            path.unlink(missing_ok=True)


def _page_title(result: Checked) -> str:
    delta = plain_number(result.stated.delta)
    statement = f"The stated ε = {result.stated.epsilon:.4g} at δ = {delta}"
    if result.refuted:
        return f"{statement} is refuted."
    if result.is_undecided:
        return f"{statement} could not be tested in full."
    return f"No test refutes t{statement[1:]}."

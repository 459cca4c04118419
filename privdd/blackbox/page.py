"""The page and the JSON of a check."""

from __future__ import annotations

from pathlib import Path

from privdd.blackbox.reproduction import write_reproduction
from privdd.blackbox.verdict import BREAKS, KEEPS, WORDS, Checked
from privdd.reporting.page import template_environment
from privdd.runtime.files import write_bytes, write_json

TONES = {BREAKS: "contradiction", KEEPS: "consistent"}


def write_check_page(result: Checked, folder: Path) -> Path:
    """``findings.json``, ``check.html`` and, of a refuted statement, ``reproduce.py`` in ``folder`` -> the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "findings.json", result.as_json())
    page = (
        template_environment()
        .get_template("check.html.jinja")
        .render(c=result, tone=TONES.get(result.verdict, "unprotected"), strengths=WORDS, title=_page_title(result))
    )
    write_bytes(folder / "check.html", page.encode())
    write_reproduction(result, folder)
    return folder / "check.html"


def _page_title(result: Checked) -> str:
    stated = f"epsilon {result.stated.epsilon:g} at delta {result.stated.delta:g}"
    if result.refuted:
        return f"The stated {stated} is refuted"
    return f"Nothing found refutes the stated {stated}"

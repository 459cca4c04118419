"""The page of a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from privdd.blackbox.check_report import WORDS, SingleTestResult
from privdd.blackbox.check_verdict import BREAKS, KEEPS, UNDECIDED, Checked
from privdd.blackbox.claims import plain_number
from privdd.blackbox.reproduction import write_reproduction
from privdd.runtime.files import is_half_written, write_bytes, write_json

TONES = {BREAKS: "contradiction", KEEPS: "consistent", UNDECIDED: "untested"}
OTHER_TONE = "unprotected"
NONE = "–"
RELEASES: Mapping[str, str] = {
    "update": "one client's update",
    "aggregate": "an aggregate of all clients' updates",
    "records": "a function of a table of records",
}
UNITS: Mapping[str, str] = {"update": "update", "aggregate": "client's update", "records": "record"}
# outcome -> the evidence of a test without a bound on epsilon; rows come in this order, behind
# those that refute the statement
OBSERVED: Mapping[str, str] = {
    "condition": "seen in single calls; no bound follows",
    "depends on the record": "seen in calls with equal random numbers; no bound follows",
    "not refuted": "single calls, without statistics",
    "not tested": "none: the test does not apply",
}
OUTCOMES = ("refuted", *OBSERVED)


@dataclass(frozen=True)
class CheckRow:
    """One test in the table, in words."""

    name: str
    outcome: str
    bound: float | None
    says: str
    inputs: str
    evidence: str


def _check_rows(results: Sequence[SingleTestResult]) -> list[CheckRow]:
    """The rows of the table, those that decide first."""
    ordered = sorted(results, key=lambda result: OUTCOMES.index(result.outcome))
    return [_check_row(result) for result in ordered]


def _check_row(result: SingleTestResult) -> CheckRow:
    bound = None
    evidence = OBSERVED.get(result.outcome, NONE)
    if result.strength:
        bound = result.epsilon
        evidence = WORDS[result.strength]
    return CheckRow(
        result.name, result.outcome, bound, result.says, result.inputs or NONE, evidence
    )


def write_check_page(result: Checked, folder: Path) -> Path:
    """``findings.json``, ``check.html`` and, of a refuted statement, ``reproduce.py``.

    Args:
        result: of a check.
        folder: that the files are written to.

    Returns:
        The page.
    """
    from privdd.reporting.page import template_environment
    from privdd.reporting.wording import neighbours_text

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "findings.json", result.as_json())
    template = template_environment().get_template("check.html.jinja")
    page = template.render(
        c=result,
        tone=TONES.get(result.verdict, OTHER_TONE),
        tests=_check_rows(result.looks),
        release=RELEASES[result.stated.kind],
        neighbours=neighbours_text(result.stated.relation, UNITS[result.stated.kind]),
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

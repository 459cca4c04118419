"""The result as a table in the terminal: readable in a pipe, where no width is known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TextIO

from rich.table import Table
from rich.text import Text

from privdd.reporting import finding_selection, summary, wording
from privdd.reporting.console import console_for
from privdd.reporting.distillation_lines import distillation_lines, undistilled_marks
from privdd.reporting.policy import EXIT_BROKEN, Policy, breaks_policy
from privdd.reporting.schema import ClaimRow, Findings, SurfaceRow
from privdd.reporting.wording import format_number

STYLE = {
    "unprotected": "yellow",
    "untested": "yellow",
    "consistent": "green",
    "contradiction": "bold red",
}
EXIT_CONTRADICTED = 2
EXIT_DIVERGED = 1  # there is no model, so nothing was attacked and no accuracy is known


def conclude_audit(
    findings: Findings, folder: Path, policy: Policy | None, file: TextIO, notes: Iterable[str] = ()
) -> int:
    """Print the result of the audit in ``folder``, and the outcome of every limit of the policy ->
    exit status: 2 a stated epsilon is contradicted, 1 the training diverged, so nothing was
    attacked, 3 a limit of the policy is broken or not decided, else 0."""
    print_summary(findings, file)
    for note in notes:
        print(note, file=file)
    print(f"\nreport: {folder / 'report.html'}\nresult: {folder / 'findings.json'}", file=file)
    broken = policy is not None and breaks_policy(policy, findings, file)
    if findings.verdict == "contradiction":
        return EXIT_CONTRADICTED
    if findings.utility is not None and findings.utility.diverged is not None:
        return EXIT_DIVERGED
    return EXIT_BROKEN if broken else 0


def print_summary(findings: Findings, file: IO[str], width: int | None = None) -> None:
    """The answer with its epsilons, the verdict in words, and one row per surface.

    width: columns; unset, that of the terminal, or 132 where ``file`` is none. Off a terminal
        nothing but plain text is written.
    """
    console = console_for(file, width)
    answer = Text(_answer_line(findings))
    first_lines = [Text(mark, style="yellow") for mark in undistilled_marks(findings)]
    # The verdict on a guarantee comes before what the run sends.
    has_guarantee = findings.verdict in ("consistent", "contradiction")
    first_lines.insert(0 if has_guarantee else len(first_lines), answer)
    for first_line in first_lines:
        console.print(first_line, soft_wrap=first_line is answer and not file.isatty())
    console.print(Text(_limits_line(findings)))
    headline = summary.verdict_headline(findings)
    style = "yellow" if headline.weak else STYLE[headline.kind]
    console.print(Text(f"{headline.label}: {headline.title}", style=style))
    for sentence in headline.sentences:
        console.print(Text(sentence))
    for mark in summary.target_marks(findings):
        console.print(Text(mark, style="yellow"))
    for line in distillation_lines(findings):
        console.print(Text(line))
    console.print(_summary_table(findings))


def _answer_line(findings: Findings) -> str:
    """Is the epsilon that is stated or claimed true, and which was shown and proven?"""
    privacy = findings.privacy
    shown = finding_selection.shown_epsilon(findings.findings)
    claim = finding_selection.boldest_claim(privacy.claims)
    word = finding_selection.limit_word(claim, findings.findings)
    return (
        f"{_epsilon_answer(findings, claim, word, shown)}: shown at least {format_number(shown)}; "
        f"delta {format_number(privacy.delta)}, unit {privacy.unit}, {privacy.relation}"
    )


def _limits_line(findings: Findings) -> str:
    epsilon = findings.privacy.epsilon
    proven = (
        f"proven at most {format_number(epsilon.pld)} (PLD) / {format_number(epsilon.rdp)} (RDP)"
    )
    return f"epsilon {proven}{_accuracy_text(findings)}"


def _epsilon_answer(
    findings: Findings, claim: ClaimRow | None, word: str, shown: float | None
) -> str:
    """Of the number that the run is held to, or that a paper claims; of the accounting's where no
    proof brings the paper's to this run, or the test that failed is of another limit."""
    privacy = findings.privacy
    is_broken = findings.verdict == "contradiction"
    proven = privacy.epsilon.proven
    exceeds = finding_selection.exceeds_claim(claim, shown, privacy.delta)
    if claim is None or claim.number is None or (is_broken and word == "claimed" and not exceeds):
        return _accounting_answer(findings)
    delta = ""
    if claim.delta not in (None, privacy.delta):
        delta = f" at delta {format_number(claim.delta)}"
    typed = wording.typed_limit_text(claim)
    head = typed or f"epsilon {format_number(claim.number)}{delta} ({word})"
    if is_broken:
        return f"{head} does not hold"
    if exceeds:
        return f"{head} does not cover what this run reveals"
    if proven > claim.number:
        tests = "not tested" if shown is None else "not contradicted"
        return f"{head} is {tests}, and not proven either"
    if claim.sound or word == "stated":
        return f"{head} is proven, and {_tested_text(findings)}"
    unproven = f"the {format_number(claim.number)} claimed{delta} does not cover this run"
    return f"epsilon {format_number(proven)} is proven, and {_tested_text(findings)} ({unproven})"


def _accounting_answer(findings: Findings) -> str:
    """Of the epsilon that the accounting proves."""
    is_broken = findings.verdict == "contradiction"
    proven = findings.privacy.epsilon.proven
    if math.isinf(proven) and is_broken:
        return "an epsilon that is stated does not hold"
    if math.isinf(proven):
        return "no epsilon is stated, and none is proven"
    head = f"epsilon {format_number(proven)}"
    if is_broken:
        return f"{head} does not hold"
    return f"{head} is proven, and {_tested_text(findings)}"


def _tested_text(findings: Findings) -> str:
    if findings.verdict == "consistent":
        return "not contradicted"
    return "not tested in every part"


def _accuracy_text(findings: Findings) -> str:
    utility = findings.utility
    target = findings.target
    if utility is None:
        return ""
    if target is None:
        return f"; accuracy {wording.format_accuracy(utility)} ({utility.accuracy_kind})"
    text = f"; accuracy {wording.format_accuracy(utility)} on held-out records"
    if target.accuracy_training is not None:
        text += f", {wording.format_share(target.accuracy_training)} on training records"
    return text


def _surface_cell(row: SurfaceRow, findings: Findings) -> str:
    """The surface, and where several messages travel on it the names of this row's."""
    rows = [message for message in findings.surfaces if message.surface == row.surface]
    if len(rows) == 1 and len(row.names) == 1:
        return str(row.surface)
    return f"{row.surface}: {', '.join(row.names)} ({row.sender})"


def _summary_table(findings: Findings) -> Table:
    table = Table(
        title=f"{findings.run.algo} on {findings.run.data}, seed {findings.run.seed}",
        title_justify="left",
    )
    for name in ("surface", "protection"):
        table.add_column(name, overflow="fold")
    for name in ("stated", "at most", "at least"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("worst attack", overflow="fold", ratio=1)
    table.add_column("verdict", no_wrap=True)
    for line in summary.surface_lines(findings):
        worst = "; ".join(line.worst)
        if not worst:
            if isinstance(line.row.audited, str):
                worst = line.row.audited
            else:
                worst = wording.NONE
        cells = (
            _surface_cell(line.row, findings),
            wording.mechanism_title(line.row.mechanism),
            wording.stated_cell(line.stated, findings.privacy.claims),
            format_number(line.proven),
            format_number(line.shown),
            worst,
        )
        style = STYLE[line.verdict]
        if summary.is_weak_limit(line.verdict, findings, line.proven):
            style = "yellow"
        verdict = Text(wording.VERDICT[line.verdict].lower(), style=style)
        table.add_row(*(Text(cell) for cell in cells), verdict)
    return table

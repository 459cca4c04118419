"""One audit by the command itself, judged by what a person gets: exit status, first line, and the
verdict of every surface."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privdd.cli.in_process import run_audit_in_process
from privdd.reporting import albums, page
from privdd.reporting.schema import Verdict
from privdd.reporting.terminal import EXIT_CONTRADICTED
from privdd.selftest_faults.fault import swap_attributes

BROKEN_LIMIT = "does not hold"  # the first line's words for a contradicted limit
KEPT_LIMIT = "is proven, and not contradicted"  # ... and for one that no test contradicted


@dataclass(frozen=True)
class CommandResult:
    """What a person gets of one audit. status: the exit status; first_line: of the terminal; error:
    the last line on stderr where the status is 1; verdict: of the run; surfaces: "surface (sender)"
    -> its verdict; refuting: (test, message, note) of each finding that refutes; page: the text of
    report.html."""

    status: int
    first_line: str = ""
    error: str = ""
    verdict: Verdict | str = ""
    surfaces: Mapping[str, str] = field(default_factory=dict)
    refuting: Sequence[tuple[str, str, str]] = ()
    folder: Path | None = None
    seconds: float = 0.0

    @property
    def is_contradicted(self) -> bool:
        """Whether a person is told that a limit does not hold, by everything that says so."""
        is_printed = self.status == EXIT_CONTRADICTED and BROKEN_LIMIT in self.first_line
        return (
            is_printed
            and self.verdict == "contradiction"
            and "contradiction" in self.surfaces.values()
        )

    @property
    def is_consistent(self) -> bool:
        """Whether a person is told that nothing contradicted a limit, and that all of it was
        tested."""
        is_printed = self.status == 0 and KEPT_LIMIT in self.first_line
        return (
            is_printed
            and self.verdict == "consistent"
            and {*self.surfaces.values()} == {"consistent"}
        )

    @property
    def disagreement(self) -> str:
        """Which of status, verdicts and first line say otherwise than the rest; "" where they say
        one thing."""
        says = {
            "exit status": self.status == EXIT_CONTRADICTED,
            "first line": BROKEN_LIMIT in self.first_line,
            "verdict": self.verdict == "contradiction",
            "surfaces": "contradiction" in self.surfaces.values(),
            "findings": bool(self.refuting),
        }
        if self.status == 1 or len({*says.values()}) == 1:
            return ""
        return "; ".join(
            f"{name}: {'contradicted' if broken else 'not contradicted'}"
            for name, broken in says.items()
        )


def run_audit_command(folder: Path, settings: Sequence[str]) -> CommandResult:
    """``python -m privdd.audit`` with ``settings`` into ``folder``, in this process, in which a
    fault may be planted."""
    began = time.monotonic()
    output = io.StringIO()
    errors = io.StringIO()
    # beside the page: they take longer than all tests
    no_files = swap_attributes(
        (albums, "save_figure", _do_nothing), (page, "save_figure", _do_nothing)
    )
    with no_files, redirect_stdout(output), redirect_stderr(errors):
        status = run_audit_in_process([*settings, f"hydra.run.dir={folder}"])
    seconds = round(time.monotonic() - began, 1)
    lines = [line for line in errors.getvalue().splitlines() if line.strip()]
    error = lines[-1] if status == 1 and lines else ""
    file = folder / "findings.json"
    if not file.is_file():
        return CommandResult(status, error=error, seconds=seconds)
    data = json.loads(file.read_text())
    return CommandResult(
        status,
        output.getvalue().splitlines()[0],
        error,
        data["verdict"],
        {f"{row['surface']} ({row['sender']})": row["verdict"] for row in data["surfaces"]},
        [_describe_refutation(row) for row in data["findings"] if row.get("refutes")],
        folder,
        seconds,
    )


def _do_nothing(*arguments: Any, **named: Any) -> None:
    """In the place of what the trial does not need."""


def _describe_refutation(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["attack"], row.get("message", ""), row.get("note", "")

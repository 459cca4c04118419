"""What became of one command line, judged from its run folder: refused, run, diverged, or one of
four faults."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.fuzzing.cases import Case

FAULTS = ("traceback", "nonsense", "timeout", "killed")
MEMORY = 6 * 2**30  # bytes of address space


@dataclass(frozen=True)
class Outcome:
    """kind: refused (one line before the run), stopped (one line during it), ran, diverged, or one
    of FAULTS.

    seconds: of CPU.
    """

    kind: str
    line: str = ""
    seconds: float = 0.0


def run_case(case: Case, folder: Path) -> Outcome:
    """The command in this process, into ``folder``."""
    from privdd.cli.errors import explain_error
    from privdd.cli.main import config_of
    from privdd.cli.run import run_audit, run_training

    started = folder / "config.yaml"
    try:
        config = config_of(case.command, *case.overrides)
        (run_audit if case.command == "audit" else run_training)(
            config, folder, ["python", "-m", f"privdd.{case.command}"]
        )
    except Exception as error:
        line = explain_error(error)
        if line is None or "\n" in line or len(line) > 900:
            return Outcome("traceback", traceback.format_exc()[-1500:])
        named = case.odd is None or any(
            _named(part, line)
            for part in (case.odd[0].rsplit(".", 1)[-1], case.odd[1].strip("'[]{}"))
        )
        return Outcome(
            "stopped" if started.exists() else "refused",
            line if named else f"(key not named: {case.odd}) {line}",
        )
    wrong = problems(folder, case.command)
    if wrong:
        return Outcome("nonsense", "; ".join(wrong))
    return Outcome(
        "diverged" if _result(folder, case.command).get("diverged") is not None else "ran"
    )


def _named(part: str, line: str) -> bool:
    return bool(part) and part.lower() in line.lower()


def _result(folder: Path, command: str) -> dict[str, Any]:
    """Of training.json, or the utility of findings.json."""
    found = json.loads(
        (folder / ("training.json" if command == "train" else "findings.json")).read_text()
    )
    return dict(found if command == "train" else found.get("utility") or {})


def problems(folder: Path, command: str) -> list[str]:
    """What is wrong with a finished run: incomplete, not finite without saying so, or not what the
    ledger says."""
    from privdd.runtime.run_folder import read_tensors

    wanted = {"train": ("training.json",), "audit": ("findings.json", "report.html")}[command]
    wrong = [
        f"{name} is missing"
        for name in ("config.yaml", "ledger.json", "manifest.json", *wanted)
        if not (folder / name).is_file()
    ]
    if wrong:
        return wrong
    utility = _result(folder, command)
    if not 0 <= utility["accuracy"] <= 1:
        wrong.append(f"accuracy={utility['accuracy']}")
    if utility.get("diverged") is None:
        for file in sorted(folder.glob("state/round_*/server.safetensors")):
            bad = [
                n
                for n, t in read_tensors(file).items()
                if t.is_floating_point() and not bool(t.isfinite().all())
            ]
            wrong += (
                [f"{file.parent.name}: {bad[0]} is not finite, and nothing says so"] if bad else []
            )
    if command == "audit":
        wrong += _findings(folder)
        if "</html>" not in (folder / "report.html").read_text()[-200:]:
            wrong.append("the page is not whole")
    return wrong + disagreements(folder)


def _findings(folder: Path) -> list[str]:
    from privdd.reporting.schema import load_findings

    found = load_findings(folder / "findings.json")
    wrong = [
        f"{f.attack} on {f.surface}: auc={f.auc}"
        for f in found.findings
        if f.auc is not None and not 0 <= f.auc <= 1
    ]
    bounds = [(f.attack, f.epsilon_shown) for f in found.findings if f.epsilon_shown is not None]
    wrong += [
        f"{attack}: measured epsilon {bound}"
        for attack, bound in bounds
        if not 0 <= bound <= math.inf
    ]
    stated = (found.privacy.epsilon.pld, found.privacy.epsilon.rdp)
    return wrong + [f"epsilon {value}" for value in stated if not 0 <= value <= math.inf]


def disagreements(folder: Path) -> list[str]:
    """What ``privdd.verify`` finds wrong."""
    from privdd.verification.run_folder import verify_run

    return [f"verify: {line}" for line in verify_run(folder).disagreements][:3]


def in_child(work: Callable[[], Outcome], log: Path, seconds: float) -> Outcome:
    """``work`` in a fork of this process, which is ended after so many CPU seconds, five times as
    long, or beyond MEMORY."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(work, log, seconds)
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - began > 5 * seconds:  # waits for something that never comes
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    spent = used.ru_utime + used.ru_stime
    if log.is_file():
        return Outcome(**{**json.loads(log.read_text()), "seconds": spent})
    if spent > 0.9 * seconds or time.monotonic() - began > 5 * seconds:
        return Outcome("timeout", f"not done after {seconds:.0f} CPU s", spent)
    return Outcome("killed", f"wait status {status}", spent)


def _child(work: Callable[[], Outcome], log: Path, seconds: float) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
            os.dup2(nothing.fileno(), 2)
            found = work()
    except BaseException:
        found = Outcome("traceback", traceback.format_exc()[-1500:])
    log.write_text(json.dumps(asdict(found)))
    sys.stdout.flush()
    os._exit(0)

"""A mistyped command is one line that begins like every other error, and status 1: 2 says that
something is refuted."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "audit": "privdd.audit",
    "train": "privdd.train",
    "report": "privdd.report",
    "verify": "privdd.verify",
    "gate": "privdd.gate",
    "check": "privdd.check",
    "selftest": "privdd.selftest",
    "canary": "privdd.canary.__main__",
    "reproduce": "privdd.reproduce.__main__",
    "account": "privdd.account",
    "attacks": "attacks.selftest",
}
PARSED = ("report", "verify", "gate", "attacks")
MISTAKES = [
    *((name, ["--no-such-option"]) for name in MODULES),
    *((name, ["no_such_key=1"]) for name in MODULES if name != "attacks"),
    ("report", ["x", "pfd=true"]),
    ("report", ["x", "--pdf"]),
    ("report", ["x", "pdf=yes"]),
    ("report", ["x", "card=x"]),
    ("report", ["x", "out="]),
    ("verify", ["x", "--strict"]),
    ("verify", ["x", "stric=true"]),
    ("verify", ["x", "y"]),
    ("verify", ["x", "key="]),
    ("verify", ["x", "polic=y"]),
    ("gate", ["x", "polcy=y"]),
    ("gate", ["x", "--policy", "y"]),
    ("gate", ["ini=true"]),
    ("gate", ["x", "fail_on=auc"]),
    ("attacks", ["--run", "2"]),
    ("attacks", ["--runs", "two"]),
    ("audit", ["--cfg"]),
    ("audit", ["--cfg", "jobs"]),
    ("audit", ["--cfg", "job", "--resol"]),
    ("audit", ["--package"]),
    ("audit", ["--config-dir"]),
    ("train", ["--cfg", "jobs"]),
    ("train", ["--multi"]),
    ("train", ["--hydra"]),
]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, list[str]], tuple[int, str]]:
    """Exit status and stderr of a command, in this process."""

    def run(name: str, argv: list[str]) -> tuple[int, str]:
        module = import_module(MODULES[name])
        monkeypatch.setattr(sys, "argv", [name, *argv])
        try:
            if name in ("audit", "train"):
                from privdd.cli.main import main

                status = main(name, lambda *_: pytest.fail("it ran"))
            else:
                status = module.main(argv)
        except SystemExit as stop:
            status = int(stop.code or 0)
        return status, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("name", "argv"),
    MISTAKES,
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_mistyped_command_is_one_line_and_status_1(
    name: str, argv: list[str], call: Callable[[str, list[str]], tuple[int, str]]
) -> None:
    status, said = call(name, argv)
    assert status == 1 and said.startswith("privdd: error: ") and said.count("\n") == 1, (
        status,
        said,
    )


@pytest.mark.parametrize("name", PARSED)
def test_help_is_no_mistake(name: str, call: Callable[[str, list[str]], tuple[int, str]]) -> None:
    assert call(name, ["--help"]) == (0, "")


def test_no_command_has_a_parser_of_its_own() -> None:
    found = []
    for path in [
        file
        for folder in ("privdd", "attacks", "benchmarks", "tools")
        for file in (ROOT / folder).rglob("*.py")
    ]:
        text = path.read_text(encoding="utf-8")
        if "ArgumentParser" not in text:
            continue
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
        if any(node.attr == "ArgumentParser" for node in calls):
            found.append(str(path.relative_to(ROOT)))
    assert found == ["attacks/command_line.py"]

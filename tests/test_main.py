"""The front door: every command by name, listed in an instant."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from privdd import attack, resume, scores, target
from privdd.__main__ import COMMANDS, MODULES, main
from privdd.check import check_output_folder
from privdd.cli import audit_commands
from privdd.cli.audit_commands import command_of_run, with_target_prefix
from privdd.core.validation import BadConfig
from privdd.runtime.files import DamagedRun


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_module_with_a_main(name: str) -> None:
    assert callable(importlib.import_module(MODULES.get(name, f"privdd.{name}")).main)


def test_the_list_imports_nothing_slow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in COMMANDS)
    program = (
        "import sys\nfrom privdd.__main__ import main\nmain(['--help'])\n"
        "assert not {'torch', 'numpy', 'hydra', 'omegaconf'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_no_help_and_no_list_imports_torch() -> None:
    """All in one process, which is left without torch: 4 CPU seconds less for whoever asks."""
    program = (
        "import sys\n"
        "from privdd.__main__ import COMMANDS, main\n"
        "asked = [[name, '--help'] for name in COMMANDS]\n"
        "asked += [['list'], ['list', 'algo'], ['reproduce', 'list']]\n"
        "for typed in asked:\n"
        "    assert main(typed) == 0, typed\n"
        "    slow = {'torch', 'scipy', 'matplotlib'} & {*sys.modules}\n"
        "    assert not slow, (typed, slow)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["adit"], "adit: unknown command; did you mean privdd audit?"),
        (["algo=fedfed"], "algo=fedfed: a command is needed; did you mean privdd audit algo="),
        (["list", "nothing"], "nothing: unknown group; known are algo, "),
        (["gate", "x", "--policy", "y"], "--policy: keys have no dashes: write policy=FILE"),
    ],
)
def test_a_mistake_is_one_line(
    typed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"privdd: error: {said}") and line.count("\n") == 1


def test_the_choices_of_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "data"]) == 0
    assert "digits" in capsys.readouterr().out.splitlines()
    assert main(["list"]) == 0
    assert "attack: " in capsys.readouterr().out


@pytest.mark.parametrize("door", [attack, resume, scores, target])
def test_a_door_shows_its_help(door: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main(["--help"]) == 0  # type: ignore[attr-defined]
    assert capsys.readouterr().out.startswith("usage: privdd ")


@pytest.mark.parametrize("door", [attack, scores])
def test_a_door_needs_its_place_first(door: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main(["seed=1"]) == 1  # type: ignore[attr-defined]
    assert "is needed, as the first argument" in capsys.readouterr().err


def test_a_door_hands_its_place_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    handed: list[tuple[str, list[str]]] = []

    def record(command: str, run: object) -> int:
        handed.append((command, sys.argv[1:]))
        return 0

    monkeypatch.setattr(audit_commands, "main", record)
    monkeypatch.setattr(sys, "argv", ["privdd"])
    (tmp_path / "config.yaml").write_text("algo: {}")
    assert attack.main(["DIR", "attack=[lira]"]) == 0
    assert resume.main([str(tmp_path)]) == 0
    assert scores.main(["mine.npz", "privacy.epsilon=3"]) == 0
    assert handed == [
        ("audit", ["run=DIR", "attack=[lira]"]),
        ("train", [f"resume={tmp_path}"]),
        ("audit", ["scores=mine.npz", "privacy.epsilon=3"]),
    ]


def test_the_command_of_a_stored_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("audit: {}")
    assert command_of_run(tmp_path) == "audit"
    with pytest.raises(BadConfig, match="no such folder"):
        command_of_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DamagedRun, match="not a run folder"):
        command_of_run(tmp_path / "empty")


def test_keys_of_a_target_need_no_prefix() -> None:
    typed = ["model=a:B", "args.width=3", "target.train=x.npz", "out=DIR", "stated.epsilon=1"]
    assert with_target_prefix(typed) == [
        "target.model=a:B",
        "target.args.width=3",
        "target.train=x.npz",
        "out=DIR",
        "stated.epsilon=1",
    ]


def test_a_check_overwrites_no_findings_of_something_else(tmp_path: Path) -> None:
    check_output_folder(tmp_path)  # nothing is there
    (tmp_path / "findings.json").write_text('{"schema": 1, "run": {}}')
    with pytest.raises(BadConfig, match=r"holds the findings\.json of something else"):
        check_output_folder(tmp_path)
    (tmp_path / "findings.json").write_text("{")
    with pytest.raises(DamagedRun):
        check_output_folder(tmp_path)

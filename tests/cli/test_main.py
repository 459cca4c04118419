"""The written help: every choice that exists is in it, and every example is a command that is
accepted."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest

from privdd import __version__
from privdd.cli.compose import config_dir, group_choices
from privdd.cli.main import (
    COMMAND_EXAMPLES,
    SHOWN_GROUPS,
    check_command,
    help_text,
    print_help_if_asked,
)


@pytest.mark.parametrize("command", ["audit", "train"])
def test_every_choice_is_listed(command: str) -> None:
    words = help_text(command).replace(",", " ").split()
    for group in SHOWN_GROUPS:
        if group != "attack" or command == "audit":
            assert {*group_choices(group, [config_dir()])} <= {*words}, group


@pytest.mark.nightly(cases=["audit"])
@pytest.mark.parametrize("command", ["audit", "train"])
def test_examples_are_accepted(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(COMMAND_EXAMPLES[command]) == 5
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs" / "..."  # as the examples write it
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("{}\n")
    for arguments, _ in COMMAND_EXAMPLES[command]:
        check_command(command, shlex.split(arguments))


def test_help_is_no_wider_than_a_terminal() -> None:
    assert max(map(len, help_text("audit").splitlines())) <= 120


def test_version_and_own_files(tmp_path: Path) -> None:
    out = io.StringIO()
    assert (
        print_help_if_asked("audit", ["--version"], out)
        and out.getvalue() == f"privdd {__version__}\n"
    )
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "signs.yaml").write_text("_target_: signs.Signs\n")
    assert (
        print_help_if_asked("train", ["--help", "--config-dir", str(tmp_path)], out)
        and "signs" in out.getvalue()
    )
    assert not print_help_if_asked("audit", ["algo=fedavg"], out)

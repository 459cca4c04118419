"""The written help: every choice that exists is in it, and every example is a command that is accepted."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest

from privdd import __version__
from privdd.cli.config import choices, config_dir
from privdd.cli.help import EXAMPLES, SHOWN, answered, help_text
from privdd.cli.main import checked


@pytest.mark.parametrize("command", ["audit", "train"])
def test_every_choice_is_listed(command: str) -> None:
    words = help_text(command).replace(",", " ").split()
    for group in SHOWN:
        if group != "attack" or command == "audit":
            assert {*choices(group, [config_dir()])} <= {*words}, group


@pytest.mark.parametrize("command", ["audit", "train"])
def test_examples_are_accepted(command: str) -> None:
    assert len(EXAMPLES[command]) == 5
    for arguments, _ in EXAMPLES[command]:
        checked(command, shlex.split(arguments))


def test_help_is_no_wider_than_a_terminal() -> None:
    assert max(map(len, help_text("audit").splitlines())) <= 120


def test_version_and_own_files(tmp_path: Path) -> None:
    out = io.StringIO()
    assert answered("audit", ["--version"], out) and out.getvalue() == f"privdd {__version__}\n"
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "signs.yaml").write_text("_target_: signs.Signs\n")
    assert answered("train", ["--help", "--config-dir", str(tmp_path)], out) and "signs" in out.getvalue()
    assert not answered("audit", ["algo=fedavg"], out)

"""Tests of ``attacks.command_line``: a mistyped option is one line and status 1, and no option is
abbreviated."""

from __future__ import annotations

import pytest

from attacks.command_line import CommandParser


@pytest.mark.parametrize("typed", ["--stric", "--unknown", "--strict=3"])
def test_a_mistyped_option_is_one_line_and_status_one(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = CommandParser(prog="privdd-verify")
    parser.add_argument("--strict", action="store_true")
    assert parser.parse_args(["--strict"]).strict
    with pytest.raises(SystemExit) as stop:
        parser.parse_args([typed])
    assert stop.value.code == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("privdd: error: ")
    assert shown.err.count("\n") == 1

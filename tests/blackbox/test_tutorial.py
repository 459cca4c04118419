"""The mechanism of docs/tutorials/check-a-mechanism.md is refuted as the page says, and stands with
the noise that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from privdd.blackbox.check_command import CHECK
from privdd.blackbox.check_verdict import BREAKS
from privdd.blackbox.claims import CheckedClaim
from privdd.check import main

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
PAGE = TUTORIALS / "check-a-mechanism.md"
REVIEW = TUTORIALS / "review-a-paper.md"


@pytest.mark.nightly
def test_what_the_page_says_of_its_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    code, _ = re.findall(r"```python\n(.*?)```", text, re.S)
    (command,) = re.findall(r"^python -m privdd\.check (.*)$", text, re.M)
    (tmp_path / "noise.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    # calls end it, not seconds: a busy machine finds as much
    small = ["max_calls=60000", "input.shapes=[[4,3],[4]]"]
    assert main([*command.split(), *small]) == 2  # at 12,000 calls, 4 of 60 runs found too little
    (quoted,) = re.findall(r"```text\n(.*?)\n```", text, re.S)
    words, shown = quoted.rsplit(" ", 1)
    printed = capsys.readouterr().out
    assert printed.startswith(words)
    assert float(printed.removeprefix(words).split()[0]) == pytest.approx(
        float(shown), abs=0.3
    )  # of fewer calls than on the page
    assert main([*command.split(), "args.std=2", *small]) == 0
    assert "not refuted, under conditions" in capsys.readouterr().out


def test_the_quoted_line_has_todays_form() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m privdd\.check (.*)$", text, re.M)
    (quoted,) = re.findall(r"```text\n(.*?)\n```", text, re.S)
    given = CHECK.parse(command.split())
    claim = CheckedClaim(given["stated.epsilon"], given["stated.delta"], given["kind"])
    head = f"{given['mechanism']}: {claim.says}: {BREAKS.upper()}: epsilon is above "
    assert quoted.startswith(head) and float(quoted.removeprefix(head)) > claim.epsilon


def test_a_mechanism_without_its_key_is_told_which_one(capsys: pytest.CaptureFixture) -> None:
    assert main(["noise.py:release", "stated.epsilon=2"]) == 1
    assert "did you mean mechanism=noise.py:release?" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_mechanism_under_review_is_refuted_with_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    text = REVIEW.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(# fedx.py.*?)```", text, re.S)
    (command,) = re.findall(r"^python -m privdd\.check (.*)$", text, re.M)
    (tmp_path / "fedx.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "input.rows=[6,3]", "max_calls=40000"]) == 2
    assert "REFUTED" in capsys.readouterr().out
    assert (tmp_path / "fedx-check" / "reproduce.py").is_file()


def test_the_numbers_under_review_are_printed_as_the_page_shows(
    capsys: pytest.CaptureFixture,
) -> None:
    from privdd import account

    text = REVIEW.read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m privdd\.account (.*)$", text, re.M)
    (shown,) = re.findall(r"```text\n(stated.*?)```", text, re.S)
    assert account.main(command.split()) == 2
    assert capsys.readouterr().out.startswith(shown)

"""The command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from privdd.core.validation import BadConfig
from privdd.reproduce.__main__ import main
from privdd.reproduce.catalogue import ReproduceArguments, parse_arguments


def test_defaults_and_values() -> None:
    assert parse_arguments(["feddm.table2"]) == ReproduceArguments(
        "feddm.table2", "small", (), 1, Path("outputs/reproduce"), "cpu"
    )
    given = parse_arguments(
        ["feddm.table2", "scale=paper", "seeds=4,1,4", "jobs=8", "out=x", "device=cuda"]
    )
    assert given == ReproduceArguments("feddm.table2", "paper", (4, 1), 8, Path("x"), "cuda")
    assert parse_arguments(["list", "seeds=2-4"]).seeds == (2, 3, 4)


def test_the_command_of_a_page_asks_for_the_same() -> None:
    asked = parse_arguments(["feddm.table2", "scale=medium", "seeds=3,5", "device=cuda"])
    assert parse_arguments(asked.command.split()[3:]) == asked


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], "one name is needed"),
        (["a", "b"], "one name is needed"),
        (["list", "scale=smal"], "did you mean small"),
        (["list", "sedes=1"], "did you mean seeds"),
        (["list", "colour=1"], "allowed are scale"),
        (["list", "seeds=2-1"], "from the smaller"),
        (["list", "seeds=-1"], "whole number"),
        (["list", "jobs=0"], "1 to 256"),
        (["list", "jobs=two"], "whole number"),
        (["list", "scale=small", "scale=small"], "given twice"),
        (["list", "out="], "KEY=VALUE"),
        (["list", "device=gpu"], "allowed are cpu, cuda"),
    ],
)
def test_anything_else_is_one_line(typed: list[str], said: str) -> None:
    with pytest.raises(BadConfig, match=said) as error:
        parse_arguments(typed)
    assert "\n" not in str(error.value)


def test_the_command_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0 and "scale=small" in capsys.readouterr().out
    assert main([]) == 1
    assert main(["feddm.tabel2"]) == 1 and "did you mean feddm.table2?" in capsys.readouterr().err
    assert main(["fedlgd.figure5"]) == 1 and "out of reach" in capsys.readouterr().err
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "fedfed.figure17" in listed and "feddm.figure1" in listed

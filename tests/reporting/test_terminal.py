"""The summary in the terminal: every number under its own name, and no sign is lost where it cannot
be written."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest

from privdd.reporting.console import PIPE_WIDTH, console_for
from privdd.reporting.schema import Findings
from privdd.reporting.terminal import print_summary
from tests.reporting.test_decision import NOTHING, row, run
from tests.reporting.test_frontier import rates, record


def printed(findings: Findings, encoding: str = "utf-8") -> list[str]:
    """The lines as a pipe of that encoding gets them, their spaces put together."""
    held = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_summary(findings, held)
    held.flush()
    return [" ".join(line.split()) for line in held.buffer.getvalue().decode(encoding).splitlines()]  # type: ignore[attr-defined]


def test_an_epsilon_stands_with_its_accountant_delta_unit_and_relation() -> None:
    found = record(
        0, 2.0, 3.0, (0.7,), (rates(0.1, 0.2),), unit="client", relation="zero_out"
    ).findings
    first, second, *_ = printed(found)
    assert (
        first == "epsilon 0.7 (claimed) is not contradicted, and not proven either: shown at "
        "least 0.25; delta 1e-5, unit client, zero_out"
    )
    assert second == "epsilon proven at most 2 (PLD) / 3 (RDP); accuracy 50 % (global)"


@pytest.mark.parametrize(
    ("proven", "claims", "verdict", "answer"),
    [
        (
            2.0,
            (8.0,),
            "consistent",
            "epsilon 2 is proven, and not contradicted (the 8 claimed does not cover this run)",
        ),
        (2.0, (0.2,), "consistent", "epsilon 0.2 (claimed) does not cover what this run reveals"),
        (2.0, (8.0,), "contradiction", "epsilon 2 does not hold"),
        (2.0, (0.2,), "contradiction", "epsilon 0.2 (claimed) does not hold"),
        (math.inf, (8.0,), "contradiction", "an epsilon that is stated does not hold"),
        (
            math.inf,
            (8.0,),
            "unprotected",
            "epsilon 8 (claimed) is not contradicted, and not proven either",
        ),
        (2.0, (), "untested", "epsilon 2 is proven, and not tested in every part"),
        (2.0, (), "contradiction", "epsilon 2 does not hold"),
        (math.inf, (), "unprotected", "no epsilon is stated, and none is proven"),
    ],
)
def test_the_first_line_answers_whether_the_epsilon_is_true(
    proven: float, claims: tuple[float, ...], verdict: Any, answer: str
) -> None:
    found = record(0, proven, proven, claims, (rates(0.1, 0.2),)).findings.model_copy(
        update={"verdict": verdict}
    )
    assert printed(found)[0].startswith(f"{answer}: shown at least 0.25; delta ")


@pytest.mark.parametrize(
    ("proven", "sound", "answer"),
    [
        (2.0, True, "epsilon 8 at delta 1e-4 (claimed) is proven, and not contradicted"),
        (
            2.0,
            False,
            "epsilon 2 is proven, and not contradicted (the 8 claimed at delta 1e-4 does not "
            "cover this run)",
        ),
        (
            math.inf,
            False,
            "epsilon 8 at delta 1e-4 (claimed) is not contradicted, and not proven either",
        ),
    ],
)
def test_a_claim_keeps_its_delta_and_is_proven_only_where_it_covers_the_run(
    proven: float, sound: bool, answer: str
) -> None:
    claim = {"source": "s", "epsilon": 8.0, "sound": sound, "why": "w", "delta": 1e-4}
    found = record(0, proven, proven, found=(rates(0.1, 0.2),), claims=[claim]).findings
    assert printed(found)[0].startswith(f"{answer}: shown at least 0.25; delta 1e-5, ")


def test_a_surface_has_its_epsilons_in_the_order_of_the_heads() -> None:
    found = run(
        [row(NOTHING, epsilon_shown=0.25, epsilon_stated=1.5, epsilon_validity="finite_sample")],
        "consistent",
        2.0,
    )
    lines = [
        [cell.strip() for cell in line.replace("┃", "│").split("│")] for line in printed(found)
    ]
    head, body = (
        next(line for line in lines if first in line) for first in ("surface", "features")
    )
    assert head[3:6] == ["stated", "at most", "at least"] and body[3:6] == ["1.5", "2", "0.25"]


def test_no_limit_is_spelled_out_where_the_sign_cannot_be_written() -> None:
    said = "proven at most inf (PLD) / inf (RDP)"
    assert any(said in line for line in printed(run([row(NOTHING)], "unprotected", "inf"), "ascii"))


def test_off_a_terminal_there_is_plain_text_even_where_colours_are_forced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in "".join(printed(run([row(NOTHING)], "unprotected", "inf")))


def test_a_pipe_is_given_plain_text_of_one_width() -> None:
    pipe = io.StringIO()
    console_for(pipe).print("[bold]word[/bold] " * 200)
    lines = pipe.getvalue().splitlines()
    assert max(map(len, lines)) <= PIPE_WIDTH < 2 * max(map(len, lines))
    assert "\x1b" not in pipe.getvalue()

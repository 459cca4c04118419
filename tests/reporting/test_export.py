"""Tables for other programs: every number under its own name, and nothing that a spreadsheet would
run."""

from __future__ import annotations

import csv
import io
import math
import re
from typing import Any

import pytest

from privdd.reporting.export import (
    Table,
    findings_table,
    frontier_table,
    leak_table,
    leaks_to_latex,
    table_to_csv,
)
from tests.reporting.test_frontier import rates, record, setting

MADE = setting(*(record(at, 1.0 + at, 1.5 + at, (0.7,), (rates(0.125, 0.25),)) for at in (0, 1)))


def rows(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table[0], one, strict=True)) for one in table[1]]


def test_the_frontier_names_each_number() -> None:
    (found,) = rows(frontier_table([MADE]))
    expected = {
        "method": "m",
        "setting": "z=1",
        "seeds": 2,
        "epsilon_pld": 2.0,
        "epsilon_rdp": 2.5,
        "epsilon_claimed": 0.7,
        "epsilon_shown": 0.25,
        "delta": 1e-5,
        "unit": "record",
        "relation": "add_remove",
        "accuracy_min": 0.5,
        "accuracy_max": 0.6,
        "diverged": 0,
        "tpr_at_0.001": 0.125,
        "tpr_at_0.01": 0.25,
        "uploaded_bytes_per_client": 801,
        "verdict": "consistent",
        "noise_source": "secret",
        "paired_noise": "false",
    }
    assert {name: found[name] for name in expected} == expected


def test_the_table_of_leaks_names_each_number() -> None:
    (found,) = rows(leak_table([MADE]))
    expected = {
        "setting": "m z=1",
        "seeds": 2,
        "tpr_at_0.001": 0.125,
        "tpr_at_0.001_low": 0.115,
        "tpr_at_0.001_high": 0.135,
        "tpr_at_0.01": 0.25,
        "epsilon_claimed": 0.7,
        "epsilon_proven": 2.0,
        "epsilon_shown": 0.25,
        "delta": 1e-5,
        "unit": "record",
        "relation": "add_remove",
        "accuracy": 0.55,
        "accuracy_kind": "global",
        "uploaded_bytes_per_client": 801,
        "verdict": "consistent",
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_a_paper_gets_a_table_whose_epsilons_stand_with_their_terms() -> None:
    """Every cell in the order of the heads, powers of ten and infinity as LaTeX has them, and no
    sign that LaTeX would run."""
    first, second = (
        setting(
            record(0, math.inf, math.inf, (0.7,), (rates(0.125, 0.25),), delta=delta),
            label="a_b z=1",
        )
        for delta in (2e-5, 1e-5)
    )
    made = leaks_to_latex([first, second])
    head, body = (
        made.split(rule)[1].split(r" \\")[0].split(" & ") for rule in (r"\toprule", r"\midrule")
    )
    assert len(head) == len(body) == 12 and made.count("{lrrrrrrllrrr}") == 1
    assert body[0].strip() == r"a\_b z=1" and body[1] == r"12.5~\% (11.5~\% to 13.5~\%)"
    assert body[3:9] == [
        "0.7",
        r"$\infty$",
        "0.25",
        r"$2 \times 10^{-5}$",
        "record",
        "add/remove",
    ]
    assert body[10:] == [r"50~\% (global)", "800~B"]
    assert all(
        part in made
        for part in (r"\caption{Leaks, privacy and use on ", r"\label{tab:leaks}", r"\end{table}")
    )
    assert not re.search(r"(?<!\\)[%#_]", made)
    alone = leaks_to_latex([first])
    assert (
        r"at $\delta =$ $2 \times 10^{-5}$, for one record, neighbouring relation add/remove"
        in alone
    )
    assert alone.count("{lrrrrrrrr}") == 1 and alone.count(" & ") == 2 * 8


def latex_faults(text: str) -> list[str]:
    """Reasons why LaTeX with booktabs would not typeset a table."""
    faults = []
    opened: list[str] = []
    for word, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if word == "begin":
            opened.append(name)
        elif not opened or opened.pop() != name:
            faults.append(f"{name} ends without a beginning")
    faults += [f"{name} does not end" for name in opened]
    plain = re.sub(r"\\[\\&%$#_{}]", "", text)
    if plain.count("{") != plain.count("}") or re.search(r"^[^{]*\}", plain):
        faults.append("braces")
    if plain.count("$") % 2:
        faults.append("dollar signs")
    outside = re.sub(r"\$[^$]*\$", "", plain)
    faults += re.findall(r"[%#_^]", outside)
    faults += re.findall(r"[^\x00-\x7f]", text)
    types = re.search(r"\\begin\{tabular\}\{([lrc]+)\}", text)
    assert types is not None
    for row in re.findall(r"^(.* & .*) \\\\$", text, re.M):
        cells = len(re.findall(r"(?<!\\)&", row)) + 1
        if cells != len(types[1]):
            faults.append(f"{cells} cells")
    return faults


@pytest.mark.parametrize("label", ["a_b σ=1", "50 % & {x} #1 $y$", "≤ 3² ± 1 × κ|α<λ>…", "~^\\"])
@pytest.mark.parametrize("deltas", [(1e-5, 1e-5), (1e-5, 2e-5)])
def test_latex_can_typeset_the_table(label: str, deltas: tuple[float, ...]) -> None:
    """By a reader of the text: environments, braces, dollar signs, cells and characters."""
    settings = [
        setting(record(0, math.inf, math.inf, (0.7,), (rates(0.1, 0.2),), delta=delta), label=label)
        for delta in deltas
    ]
    made = leaks_to_latex(settings)
    assert latex_faults(made) == []
    for sign, fault in (("\\end{table}", ""), ("&", "& &"), ("}", ""), ("$", ""), (r"\_", "_")):
        if sign in made:
            assert latex_faults(made.replace(sign, fault, 1)), sign
    assert latex_faults(made.replace("TPR:", "TPR σ:"))


def test_a_rate_that_the_sample_cannot_show_is_left_empty() -> None:
    """As on the page: "too few"."""
    (found,) = rows(
        findings_table([setting(record(0, found=(rates(0.125, 0.25, resolvable=False),)))])
    )
    assert [found[f"{part}_at_0.001"] for part in ("tpr", "lo", "hi")] == [None] * 3
    assert [found[f"{part}_at_0.01"] for part in ("tpr", "lo", "hi")] == [0.25, 0.24, 0.26]


def cells(text: str) -> list[list[str]]:
    """As a program reads the table back that holds this text alone."""
    return [*csv.reader(io.StringIO(table_to_csv((["a"], [[text]])), newline=""))]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_text_is_a_formula(start: str) -> None:
    """The six starts that OWASP's page on CSV injection names."""
    assert cells(f"{start}cmd()")[1][0][0] == "'"


@pytest.mark.parametrize("text", ["x\r=cmd()", "\r=cmd()", "x\n=cmd()", 'x","=cmd()', "x,=cmd()"])
def test_no_text_leaves_its_cell(text: str) -> None:
    """What follows would stand at the start of a cell, and there a formula is run."""
    assert len(found := cells(text)) == 2 and len(found[1]) == 1

"""Tests of ``privdd.reporting.findings_tables``."""

from __future__ import annotations

from typing import Any

from privdd.reporting.findings_tables import TableCell, findings_by_question
from privdd.reporting.knowledge_ladders import knowledge_ladders
from privdd.reporting.ledger_table import describe_event, group_releases
from privdd.reporting.schema import FindingRow, Scope
from tests.reporting.test_decision import BROKEN, COARSE, row, run

# Cells of the tables of findings: the number, and beside it what it has to be read against.


def cells(one: dict[str, Any]) -> dict[str, TableCell]:
    """The cells of a table of this finding alone, by title and plain title."""
    (table,) = findings_by_question(run([one], "unprotected", "inf").findings)
    return {
        f"{c.title}, {c.plain}": cell
        for c, cell in zip(table.columns, table.rows[0][1], strict=True)
    }


def test_a_rate_that_the_sample_cannot_show_is_too_few() -> None:
    found = cells(row(COARSE))
    assert (
        found["TPR at 0.1 % FPR, members identified"]
        == found["TPR at 1 % FPR, members identified"]
        == TableCell("too few")
    )
    assert (
        found["TPR at 10 % FPR, members identified"].small.replace("\u00a0", " ") == "0 % to 30 %"
    )


def test_a_bound_is_told_with_its_method_its_assumption_and_what_is_stated() -> None:
    found = cells(
        BROKEN | {"epsilon_method": "likelihood_ratio", "kappa": 2.0, "kappa_allowed": 1.0}
    )
    assert found["ε, at least"] == TableCell("6", "likelihood ratio") and found[
        "ε, stated"
    ] == TableCell("0.9")
    assert found["κ, largest move"] == TableCell("2", "limit 1")
    assumed = cells(BROKEN | {"epsilon_method": "probit", "epsilon_validity": "gaussian_only"})
    assert assumed["ε, at least"].small == "probit, if scores are Gaussian"


def test_pictures_and_labels_stand_beside_a_blind_guess() -> None:
    head = {"surface": "features", "attack": "x", "adversary": "server", "n": 40}
    found = cells(
        head
        | {
            "family": "reconstruction",
            "psnr": 20.0,
            "baselines": {"psnr_mean": 12.0, "psnr_black": 3.0},
        }
    )
    assert found["PSNR ↑, median"] == TableCell("20", "mean; guess 12")
    read = cells(
        head
        | {"family": "label", "label_accuracy": 0.75, "baselines": {"label_accuracy_chance": 0.5}}
    )
    assert read["Labels, classes right"].small.replace("\u00a0", " ") == "blind 50 %"


# The knowledge ladder stands in the page, every rung beside the guess that never looked.


class _Findings:
    def __init__(self, row: FindingRow) -> None:
        self.findings = [row]
        self.scope = Scope(1)


def _row(**diagnostics: object) -> FindingRow:
    return FindingRow(
        surface="synthetic_representations",
        attack="feature_inversion",
        family="reconstruction",
        adversary="server",
        psnr=14.0,
        baselines={"psnr_class_mean": 13.5, "ssim_class_mean": 0.37},
        diagnostics=diagnostics,
    )


def test_rungs_in_order_then_the_guess_that_never_looked() -> None:
    rungs = {"knows_map": {"psnr": 21.0, "ssim": 0.8}, "nothing": {"psnr": 9.0}}
    (ladder,) = knowledge_ladders(_Findings(_row(ladder=rungs)))  # type: ignore[arg-type]
    assert [step.psnr for step in ladder.steps] == [21.0, 9.0, 13.5]
    assert ladder.steps[1].ssim is None and ladder.steps[-1].ssim == 0.37
    assert "blind" in ladder.steps[-1].who


def test_who_knows_more_reaches_at_least_what_who_knows_less_does() -> None:
    rungs = {
        "knows_map": {"psnr": 9.2, "identified": 0.1},
        "shadow_map": {"psnr": 9.0, "identified": 0.0},
        "nothing": {"psnr": 20.3, "identified": 1.0},
    }
    (ladder,) = knowledge_ladders(_Findings(_row(ladder=rungs)))  # type: ignore[arg-type]
    assert [(step.psnr, step.identified) for step in ladder.steps[:3]] == [(20.3, 1.0)] * 3


def test_no_ladder_without_rungs_or_with_something_else_in_their_place() -> None:
    assert not knowledge_ladders(_Findings(_row()))  # type: ignore[arg-type]
    assert not knowledge_ladders(_Findings(_row(ladder="<script>")))  # type: ignore[arg-type]


def test_what_is_computed_from_unprotected_values_is_not_called_protected() -> None:
    from privdd.reporting.ledger_table import EXPOSED, PUBLIC, group_releases

    def release(id: int, kind: str, post_of: list[int]) -> dict[str, object]:
        return {"id": id, "name": f"r{id}", "event": {"type": kind}, "post_of": post_of}

    rows = [
        release(0, "none", []),
        release(1, "non_private", []),
        release(2, "none", [1]),
        release(3, "none", [2]),
    ]
    rows += [
        {**release(4, "gaussian", []), "event": {"type": "gaussian", "noise_multiplier": 1.0}},
        release(5, "none", [4]),
    ]
    words = {group.name: group.mechanism for group in group_releases({"releases": rows})}
    assert words["r0"] == PUBLIC and words["r2"] == words["r3"] == EXPOSED
    assert words["r5"] == "computed from protected values only"


# The ledger in a few lines: no release is left out of the count, and no part of an event out of its
# words.


NOISE = {"type": "gaussian", "noise_multiplier": 1.5}
STEP = {"type": "poisson", "probability": 0.25, "event": NOISE}


def test_releases_of_one_kind_are_counted_with_their_repetitions() -> None:
    rows = [
        {
            "id": at,
            "name": "sum",
            "surface": "update",
            "event": NOISE,
            "client": at % 2,
            "round": 0,
            "count": 3,
        }
        for at in range(4)
    ]
    (one,) = group_releases({"releases": [*rows, 7]})
    assert (one.releases, len(one.clients), len(one.rounds)) == (12, 2, 1)
    assert one.mechanism == "Gaussian noise, multiplier 1.5"


def test_an_event_is_told_whole() -> None:
    said = "Gaussian noise, multiplier 1.5, records drawn with probability 0.25"
    assert (
        describe_event(STEP) == said
        and describe_event({"type": "repeat", "count": 9, "event": STEP}) == f"{said}, 9 times"
    )
    several = describe_event({"type": "compose", "events": [NOISE] * 6})
    assert several == " + ".join(["Gaussian noise, multiplier 1.5"] * 4) + " and 2 more"
    assert describe_event({"type": "new"}) == "unknown (new)" and describe_event(3) == "unknown"

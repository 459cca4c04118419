"""Cells of the tables of findings: the number, and beside it what it has to be read against."""

from __future__ import annotations

from typing import Any

from privdd.reporting.findings_tables import TableCell, findings_by_question
from tests.reporting.test_decision import BROKEN, COARSE, row, run


def cells(one: dict[str, Any]) -> dict[str, TableCell]:
    """The cells of a table of this finding alone, by title and plain title."""
    (table,) = findings_by_question(run([one], "unprotected", "inf").findings)
    return {f"{c.title}, {c.plain}": cell for c, cell in zip(table.columns, table.rows[0][1], strict=True)}


def test_a_rate_that_the_sample_cannot_show_is_too_few() -> None:
    found = cells(row(COARSE))
    assert found["TPR at 0.1 % FPR, members found"] == found["TPR at 1 % FPR, members found"] == TableCell("too few")
    assert found["TPR at 10 % FPR, members found"].small.replace("\u00a0", " ") == "0 % to 30 %"


def test_a_bound_is_told_with_its_method_its_assumption_and_what_is_stated() -> None:
    found = cells(BROKEN | {"epsilon_method": "likelihood_ratio", "kappa": 2.0, "kappa_allowed": 1.0})
    assert found["ε, at least"] == TableCell("6", "likelihood ratio") and found["ε, stated"] == TableCell("0.9")
    assert found["κ, largest move"] == TableCell("2", "limit 1")
    assumed = cells(BROKEN | {"epsilon_method": "probit", "epsilon_validity": "gaussian_only"})
    assert assumed["ε, at least"].small == "probit, if scores are Gaussian"


def test_pictures_and_labels_stand_beside_a_blind_guess() -> None:
    head = {"surface": "features", "attack": "x", "adversary": "server", "n": 40}
    found = cells(head | {"family": "reconstruction", "psnr": 20.0, "baselines": {"psnr_mean": 12.0, "psnr_black": 3.0}})
    assert found["PSNR ↑, median"] == TableCell("20", "mean; guess 12")
    read = cells(head | {"family": "label", "label_accuracy": 0.75, "baselines": {"label_accuracy_chance": 0.5}})
    assert read["Labels, classes right"].small.replace("\u00a0", " ") == "blind 50 %"

"""Which findings have numbers that a verifier computes again, and which have none to compute them
from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privdd.verification import recomputed, run_folder
from privdd.verification.recomputed import scored_rows
from privdd.verification.run_folder import list_not_recomputable


def finding(
    family: str, status: str | None, figure: str | None = None, rate_count: int | None = None
) -> Any:
    return SimpleNamespace(
        family=family,
        status=status,
        figure=figure,
        rate_count=rate_count,
        surface="update",
        attack="lira",
        epsilon_stated=None,
    )


def test_rows_of_membership_are_scored_unless_no_attack_ran_and_nothing_was_kept() -> None:
    rows = [
        finding("membership", None),
        finding("reconstruction", None, "evidence.safetensors"),
        finding("membership", "not_attacked"),
        finding("membership", "not_attacked", "evidence.safetensors"),
        finding("membership", "not_attacked", rate_count=2),
        finding("membership", "nothing_to_read"),
    ]
    record: Any = SimpleNamespace(findings=SimpleNamespace(findings=rows))
    assert [index for index, _ in scored_rows(record)] == [0, 3, 4, 5]


def test_a_scored_finding_without_scores_is_named_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_scores = finding("membership", None, "a.safetensors")
    without = finding("membership", None, "b.safetensors")
    not_attacked = finding("membership", "not_attacked")
    opened = []

    def read_scores(record: Any, row: Any) -> object | None:
        opened.append(row)
        return "scores" if row is with_scores else None

    monkeypatch.setattr(recomputed, "read_evidence_scores", read_scores)
    monkeypatch.setattr(run_folder, "other_plotting_library", lambda record: "")
    findings = SimpleNamespace(
        findings=[with_scores, without, not_attacked],
        utility=None,
        target=None,
        privacy=SimpleNamespace(claims=[]),
    )
    record: Any = SimpleNamespace(findings=findings, path=Path("run"))
    assert [*list_not_recomputable(record, None)] == [
        "findings.1 (update lira): its evidence holds no scores"
    ]
    assert opened == [with_scores, without]

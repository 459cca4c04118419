"""Which findings have numbers that a verifier computes again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from privdd.verification.recomputed import scored_rows


def finding(
    family: str, status: str | None, figure: str | None = None, rate_count: int | None = None
) -> Any:
    return SimpleNamespace(family=family, status=status, figure=figure, rate_count=rate_count)


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

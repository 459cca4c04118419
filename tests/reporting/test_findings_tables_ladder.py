"""The knowledge ladder stands in the page, every rung beside the guess that never looked."""

from __future__ import annotations

from privdd.reporting.findings_tables import knowledge_ladders
from privdd.reporting.schema import FindingRow


class _Findings:
    def __init__(self, row: FindingRow) -> None:
        self.findings = [row]


def _row(**diagnostics: object) -> FindingRow:
    return FindingRow(
        surface="synthetic_representations", attack="feature_inversion", family="reconstruction", adversary="server",
        psnr=14.0, baselines={"psnr_class_mean": 13.5, "ssim_class_mean": 0.37}, diagnostics=diagnostics,
    )  # fmt: skip


def test_rungs_in_order_then_the_guess_that_never_looked() -> None:
    rungs = {"knows_map": {"psnr": 21.0, "ssim": 0.8}, "nothing": {"psnr": 9.0}}
    (ladder,) = knowledge_ladders(_Findings(_row(ladder=rungs)))  # type: ignore[arg-type]
    assert [step.psnr for step in ladder.steps] == [21.0, 9.0, 13.5]
    assert ladder.steps[1].ssim is None and ladder.steps[-1].ssim == 0.37
    assert "never looks" in ladder.steps[-1].who


def test_who_knows_more_reaches_at_least_what_who_knows_less_does() -> None:
    rungs = {"knows_map": {"psnr": 9.2, "identified": 0.1}, "shadow_map": {"psnr": 9.0, "identified": 0.0}, "nothing": {"psnr": 20.3, "identified": 1.0}}
    (ladder,) = knowledge_ladders(_Findings(_row(ladder=rungs)))  # type: ignore[arg-type]
    assert [(step.psnr, step.identified) for step in ladder.steps[:3]] == [(20.3, 1.0)] * 3


def test_no_ladder_without_rungs_or_with_something_else_in_their_place() -> None:
    assert not knowledge_ladders(_Findings(_row()))  # type: ignore[arg-type]
    assert not knowledge_ladders(_Findings(_row(ladder="<script>")))  # type: ignore[arg-type]


def test_what_is_computed_from_unprotected_values_is_not_called_protected() -> None:
    from privdd.reporting.findings_tables import EXPOSED, PUBLIC, group_releases

    def release(id: int, kind: str, post_of: list[int]) -> dict[str, object]:
        return {"id": id, "name": f"r{id}", "event": {"type": kind}, "post_of": post_of}

    rows = [release(0, "none", []), release(1, "non_private", []), release(2, "none", [1]), release(3, "none", [2])]
    rows += [{**release(4, "gaussian", []), "event": {"type": "gaussian", "noise_multiplier": 1.0}}, release(5, "none", [4])]
    words = {group.name: group.mechanism for group in group_releases({"releases": rows})}
    assert words["r0"] == PUBLIC and words["r2"] == words["r3"] == EXPOSED
    assert words["r5"] == "computed from protected values only"

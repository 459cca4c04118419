"""What inversion attacks reach that know less and less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from privdd.reporting import wording
from privdd.reporting.schema import (
    FindingRow,
    Findings,
    Scope,
)

RUNGS = {
    "knows_map": "holds the map and optimises through it",
    "can_query": "can query the map with images of its own",
    "shadow_map": "knows the architecture and has public data",
    "nothing": "knows the release alone",
}
METRICS = ("psnr", "ssim", "lpips", "identified")


@dataclass(frozen=True)
class LadderStep:
    """One rung, or the guess without the release; metrics that were not computed are None."""

    who: str
    psnr: float | None
    ssim: float | None
    lpips: float | None
    identified: float | None


@dataclass(frozen=True)
class KnowledgeLadder:
    """All rungs of one finding, from most knowledge to least, then the class-mean guess; means over
    its pictures."""

    title: str
    steps: tuple[LadderStep, ...]


def knowledge_ladders(findings: Findings) -> list[KnowledgeLadder]:
    """One for every finding that carries rungs."""
    ladders = [_ladder_of(row, findings.scope) for row in findings.findings]
    return [ladder for ladder in ladders if ladder is not None]


def _ladder_of(row: FindingRow, scope: Scope) -> KnowledgeLadder | None:
    rungs = (row.diagnostics or {}).get("ladder")
    if not isinstance(rungs, dict) or not rungs:
        return None
    steps = []
    for name, values in rungs.items():
        if isinstance(values, dict):
            steps.append(_ladder_step(RUNGS.get(name, str(name)), values))
    # the best result of an attacker and of all who know less: whoever knows more can ignore it
    best = []
    for index, step in enumerate(steps):
        strongest = max(steps[index:], key=lambda step: (step.identified or 0.0, step.psnr or 0.0))
        best.append(replace(strongest, who=step.who))
    baselines = row.baselines or {}
    guess = {metric: baselines.get(f"{metric}_class_mean") for metric in METRICS}
    best.append(_ladder_step("blind: the mean public image of the class", guess))
    title = f"{wording.surface_title(row, scope)}, {wording.attack_title(row.attack)}"
    return KnowledgeLadder(title, tuple(best))


def _ladder_step(who: str, values: Mapping[str, Any]) -> LadderStep:
    numbers: dict[str, float | None] = {}
    for metric in METRICS:
        value = values.get(metric)
        if isinstance(value, int | float):
            numbers[metric] = value
        else:
            numbers[metric] = None
    return LadderStep(who, **numbers)

"""The knowledge ladder of an inversion attack: what attackers with less and less knowledge can reconstruct."""

from __future__ import annotations

from dataclasses import dataclass

from privdd.reporting import words
from privdd.reporting.schema import FindingRow, Findings

RUNGS = {
    "knows_map": "holds the map and optimises through it",
    "can_query": "can query the map with images of its own",
    "shadow_map": "knows the architecture and has public data",
    "nothing": "knows nothing and looks at the release",
}
METRICS = ("psnr", "ssim", "lpips", "identified")


@dataclass(frozen=True)
class Step:
    """One rung, or the guess without the release; metrics that were not computed are None."""

    who: str
    psnr: float | None
    ssim: float | None
    lpips: float | None
    identified: float | None


@dataclass(frozen=True)
class Ladder:
    """All rungs of one finding, from most knowledge to least, then the class-mean guess; means over its pictures."""

    title: str
    steps: tuple[Step, ...]


def ladders(findings: Findings) -> list[Ladder]:
    """One for every finding that carries rungs."""
    return [found for row in findings.findings if (found := _ladder(row)) is not None]


def _ladder(row: FindingRow) -> Ladder | None:
    rungs = (row.diagnostics or {}).get("ladder")
    if not isinstance(rungs, dict) or not rungs:
        return None
    known = {name: values for name, values in rungs.items() if isinstance(values, dict)}
    steps = [_step(RUNGS.get(name, str(name)), _best(list(known.values())[at:])) for at, name in enumerate(known)]
    free = {metric: (row.baselines or {}).get(f"{metric}_class_mean") for metric in METRICS}
    steps.append(Step("never looks: the mean public image of the class", *(free[m] for m in METRICS)))
    return Ladder(f"{words.title(row)}, {words.attack(row.attack)}", tuple(steps))


def _best(results: list[dict[str, object]]) -> dict[str, object]:
    """Of what an attacker reaches with all it knows, and with less: who knows more can leave that aside."""

    def success(values: dict[str, object]) -> tuple[float, float]:
        step = _step("", values)
        return step.identified or 0.0, step.psnr or 0.0

    return max(results, key=success)


def _step(who: str, values: dict[str, object]) -> Step:
    numbers = [v if isinstance(v, int | float) else None for v in (values.get(metric) for metric in METRICS)]
    return Step(who, *numbers)

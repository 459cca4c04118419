"""What the run's claims say, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable

from privdd.reporting.schema import FindingRow
from privdd.reporting.schema_privacy import ClaimRow


def boldest(claims: Iterable[ClaimRow]) -> ClaimRow | None:
    """The claim of the smallest epsilon; None where no claim gives a number."""
    return min((c for c in claims if c.number is not None), key=lambda c: c.number or 0.0, default=None)


def exceeded(claim: ClaimRow | None, shown: float | None, delta: float) -> bool:
    """Whether more was measured at ``delta`` than is claimed; a claim at a larger delta is not comparable."""
    if claim is None or claim.number is None or shown is None or (claim.delta or delta) > delta:
        return False
    return shown > claim.number


def measures_of(claim: ClaimRow, rows: Iterable[FindingRow]) -> list[FindingRow]:
    """The findings of the attacks that measure a claim, where they measured something."""
    mine = [r for r in rows if r.attack in claim.tested_by]
    return [r for r in mine if r.auc is not None or r.identified is not None or r.psnr is not None]

"""The verdicts of ``findings.json``, found again from the ledger's epsilons and the findings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from attacks.types import Adversary, Family, Finding, Surface
from privdd.auditing.findings import MEASURED, verdict, worst
from privdd.privacy.ledger import Ledger
from privdd.reporting.folder import RunRecord
from privdd.reporting.schema import FindingRow
from privdd.verifying.disagreement import Disagreement, differing
from privdd.verifying.ledger_numbers import FILE, epsilons


def check_verdicts(record: RunRecord, ledger: Ledger | None) -> Iterator[Disagreement]:
    """Stated epsilons, what was audited, and each surface's and the run's verdict."""
    findings = record.findings
    found = []
    for row in findings.surfaces:
        surface = str(row.surface)
        mine = [(at, one) for at, one in enumerate(findings.findings) if str(one.surface) == surface]
        stated = stated_epsilon(record, ledger, surface)
        for at, one in mine:
            yield from _check_stated(record, at, one, stated)
        attacked = any(one.family != Family.GUARANTEE and MEASURED & one.model_fields_set for _, one in mine)
        if (row.audited is True) != attacked:
            yield from differing(FILE, f"surfaces.{surface}.audited", row.audited, attacked)
        said = _judged(record, ledger, surface, stated, [one for _, one in mine])
        yield from differing(FILE, f"surfaces.{surface}.verdict", row.verdict, said)
        found.append(said)
    yield from differing(FILE, "verdict", findings.verdict, worst(found))


def _judged(
    record: RunRecord, ledger: Ledger | None, surface: str, stated: float | None, rows: list[FindingRow]
) -> str:
    return verdict(epsilons(ledger, [surface]), stated, [as_finding(row) for row in rows])


def stated_epsilon(record: RunRecord, ledger: Ledger | None, surface: str) -> float | None:
    """What the ledger promises for a surface, or the one who brought scores; None where nothing is promised."""
    if ledger is None:
        claims = record.findings.privacy.claims
        return claims[0].number if claims else None
    if ledger.unit == "client" and ledger.relation != "replace":
        return None
    value = min(epsilons(ledger, [surface]).values())
    return value if math.isfinite(value) else None


def _check_stated(record: RunRecord, at: int, row: FindingRow, stated: float | None) -> Iterator[Disagreement]:
    """A bound on records is held against the ledger's epsilon or against a claim that the run prints."""
    if row.family == Family.GUARANTEE or row.epsilon_measured is None:
        return
    claims = [claim.number for claim in record.findings.privacy.claims]
    if row.epsilon_stated not in claims or row.epsilon_stated is None:
        key = f"findings.{at} ({row.surface} {row.attack}).epsilon_stated"
        yield from differing(FILE, key, row.epsilon_stated, stated)


def as_finding(row: FindingRow) -> Finding:
    """A row as the value that verdicts are made from."""
    head = {"surface", "attack", "family", "adversary"}
    measures: dict[str, Any] = row.model_dump(exclude_none=True, exclude=head)
    return Finding(Surface(row.surface), row.attack, Family(row.family), Adversary(row.adversary), measures)

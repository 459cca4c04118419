"""The verdicts of ``findings.json``, found again from the ledger's epsilons and the findings."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attacks.types import Family, Finding
from privdd.auditing.certified import certified, certified_on
from privdd.auditing.coverage import on_what_was_sent
from privdd.auditing.earlier_findings import as_finding
from privdd.auditing.findings import MEASURED, for_records, lower_bound, verdict
from privdd.auditing.looked_at import gaps
from privdd.privacy.ledger import Ledger
from privdd.reporting.folder import RunRecord
from privdd.reporting.schema import FindingRow, worst_verdict
from privdd.verifying.disagreement import Disagreement, differing
from privdd.verifying.ledger_numbers import FILE, epsilons


def check_verdicts(record: RunRecord, ledger: Ledger | None) -> Iterator[Disagreement]:
    """Stated epsilons, what was audited, and each surface's and the run's verdict."""
    findings, every = record.findings, [as_finding(row) for row in record.findings.findings]
    found = []
    for row in findings.surfaces:
        surface = str(row.surface)
        mine = [(at, one) for at, one in enumerate(findings.findings) if str(one.surface) == surface]
        stated = stated_epsilon(record, ledger, surface)
        for at, one in mine:
            yield from _check_stated(record, at, one, _printed(ledger, every[at], stated))
        attacked = any(
            on_what_was_sent(one.family, one.adversary) and MEASURED & one.model_fields_set for _, one in mine
        )
        if (row.audited is True) != attacked:
            yield from differing(FILE, f"surfaces.{surface}.audited", row.audited, attacked)
        missing = [] if ledger is None else gaps(ledger, surface, every)
        yield from differing(FILE, f"surfaces.{surface}.untested", row.untested, missing)
        said = verdict(epsilons(ledger, [surface]), stated, [every[at] for at, _ in mine], missing)
        yield from differing(FILE, f"surfaces.{surface}.verdict", row.verdict, said)
        found.append(said)
    yield from differing(FILE, "verdict", findings.verdict, worst_verdict(found))
    if ledger is not None:
        yield from _check_certified(record, ledger, every)


def _check_certified(record: RunRecord, ledger: Ledger, every: list[Finding]) -> Iterator[Disagreement]:
    """The certified epsilons are those of the rows that certify; the rows themselves need the run's records."""
    findings, victim = record.findings, int(record.manifest.get("audited_client", -1))
    pairs = {"privacy": (findings.privacy.epsilon, certified(every))}
    for row in findings.surfaces:
        pairs[f"surfaces.{row.surface}"] = row.epsilon, certified_on(victim, ledger, str(row.surface), every)
    for name, (pair, found) in pairs.items():
        stored = pair.model_dump(include={"certified", "certified_by"}, exclude_none=True)
        yield from differing(FILE, f"{name}.epsilon", stored, found)


def stated_epsilon(record: RunRecord, ledger: Ledger | None, surface: str) -> float | None:
    """What the ledger promises for a surface, or the one who brought scores; None where nothing is promised."""
    if ledger is None:
        claims = record.findings.privacy.claims
        return claims[0].number if claims else None
    value = min(epsilons(for_records(ledger), [surface]).values())
    return value if math.isfinite(value) else None


def _printed(ledger: Ledger | None, finding: Finding, stated: float | None) -> float | None:
    """What a row prints as stated: what follows from a promise to whole clients only where a bound breaks it."""
    whole = ledger is None or for_records(ledger) is ledger
    return stated if whole or (stated is not None and lower_bound(finding) > stated) else None


def _check_stated(record: RunRecord, at: int, row: FindingRow, stated: float | None) -> Iterator[Disagreement]:
    """A bound on records is held against the ledger's epsilon or against a claim that the run prints."""
    if row.family == Family.GUARANTEE or row.epsilon_measured is None:
        return
    claims = [claim.number for claim in record.findings.privacy.claims]
    if row.epsilon_stated not in claims or row.epsilon_stated is None:
        key = f"findings.{at} ({row.surface} {row.attack}).epsilon_stated"
        yield from differing(FILE, key, row.epsilon_stated, stated)

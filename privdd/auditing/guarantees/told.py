"""T1: what leaves beside the mechanisms' releases must be the same for other records.

The audited client's round runs twice, on its own records and on a third of them, and every mechanism answers the same
both times. Then everything that claims to be protected, or public, must come out the same, bit by bit: what is
sent, how often mechanisms are asked, and what ledger rows say.
"""

from __future__ import annotations

from collections.abc import Iterator

from attacks.types import Adversary, Family, Finding
from privdd.auditing.guarantees.statement import Subject
from privdd.auditing.looked_at import covered
from privdd.auditing.row_check import telling_rows

TOLD = "t1_told"


def told_findings(subject: Subject) -> Iterator[Finding]:
    """One finding: of the first phase of the method in which something is told, or that nothing is."""
    names = [name for name in subject.plan.mechanisms if subject.spends(name)]
    last = {snapshot.phase: round for round, snapshot in sorted(subject.snapshots.items())}
    if not names:
        return
    surface, refuted = subject.surface(names[-1]), {"refuted": True, "unit": subject.ledger.unit}
    measures = {"signal": ", ".join(names), "n": 1}
    for round in last.values():
        snapshot = subject.snapshots[round]
        found = telling_rows(subject.plan, round, snapshot.broadcast, dict(snapshot.memory), subject.shard)
        for says in found:
            told = {**measures, "note": says, "diagnostics": {**refuted, **covered(TOLD, last.values())}}
            yield Finding(surface, TOLD, Family.GUARANTEE, Adversary.ANALYST, told)
            return
    note = f"what leaves beside the releases is the same for other records (looked at in {len(last)} round(s))"
    quiet = {**measures, "note": note, "diagnostics": {"unit": subject.ledger.unit, **covered(TOLD, last.values())}}
    yield Finding(surface, TOLD, Family.GUARANTEE, Adversary.ANALYST, quiet)

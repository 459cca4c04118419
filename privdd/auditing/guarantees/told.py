"""T1: what leaves beside the mechanisms' releases must be the same for other records.

The audited client's round runs twice, on its own records and on a third of them, and every mechanism answers the same
both times. Then everything that claims to be protected, or public, must come out the same, bit by bit: what is
sent, how often mechanisms are asked, and what ledger rows say.
"""

from __future__ import annotations

from collections.abc import Iterator

from attacks.types import Adversary, Family, Finding
from privdd.auditing.guarantees.statement import Subject
from privdd.auditing.row_check import telling_rows

TOLD = "t1_told"


def told_findings(subject: Subject) -> Iterator[Finding]:
    """One finding for the first phase of the method in which something is told; nothing where none is."""
    names = [name for name in subject.plan.mechanisms if subject.spends(name)]
    last = {snapshot.phase: round for round, snapshot in sorted(subject.snapshots.items())}
    for round in last.values() if names else ():
        snapshot = subject.snapshots[round]
        found = telling_rows(subject.plan, round, snapshot.broadcast, dict(snapshot.memory), subject.shard)
        for says in found:
            refuted = {"refuted": True, "unit": subject.ledger.unit}
            measures = {"signal": names[-1], "n": 1, "note": says, "diagnostics": refuted}
            yield Finding(subject.surface(names[-1]), TOLD, Family.GUARANTEE, Adversary.ANALYST, measures)
            return
